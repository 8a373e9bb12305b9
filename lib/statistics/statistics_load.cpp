#include <ATen/ATen.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <utility>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/json.h"
#include "base/parallel.h"
#include "checkpoint/model_name.h"
#include "checkpoint/safetensors.h"
#include "layout/left_out.h"
#include "statistics/layer_fields.h"
#include "statistics/shard_merge.h"
#include "statistics/statistics.h"
#include "statistics/statistics_format.h"

namespace oscar {
namespace {

constexpr std::size_t kLarge = std::size_t{1} << 16;  // bytes; larger tensors are copied later, in parallel

// Hands out tensors by name and remembers which were requested, so that unknown tensors in the file are noticed.
class TensorReader {
 public:
  // keep: null, or the file whose pages row samples read after the reader is gone.
  TensorReader(const SafetensorsFile& file, std::shared_ptr<const SafetensorsFile> keep)
      : file_(file), keep_(std::move(keep)) {}

  const TensorView* find(const std::string& name) {
    const TensorView* view = file_.find(name);
    if (view != nullptr) seen_.insert(name);
    return view;
  }
  at::Tensor optional(const std::string& name, DType dtype) {
    const TensorView* view = find(name);
    return view == nullptr ? at::Tensor() : copy(*view, dtype);
  }
  // Rows of many tokens, which callers must not change. If they are in a mapped file, they are read from there.
  at::Tensor rows(const std::string& name) {
    const TensorView* view = find(name);
    if (view == nullptr) return {};
    const auto address = reinterpret_cast<std::uintptr_t>(view->data.data());
    if (!keep_ || view->data.empty() || address % alignof(float) != 0) return copy(*view, DType::kF32);
    require_dtype(*view, DType::kF32);
    // from_blob does not write through its pointer.
    void* data = const_cast<std::byte*>(view->data.data());
    return at::from_blob(
        data, view->shape, [keep = keep_](void*) {}, at::TensorOptions(at::kFloat));
  }
  at::Tensor required(const std::string& name, DType dtype) {
    const at::Tensor t = optional(name, dtype);
    if (!t.defined()) throw InputError(where() + ": tensor '" + name + "' is missing; the file is incomplete");
    return t;
  }
  template <typename T>
  std::vector<T> list(const std::string& name, DType dtype) {
    const TensorView* view = find(name);
    if (view == nullptr) return {};
    require_dtype(*view, dtype);
    if (view->shape.size() != 1) {
      throw InputError(where() + ": tensor '" + name + "' has shape " + view->shape_text() + ", expected one axis");
    }
    std::vector<T> values(view->data.size() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), view->data.data(), view->data.size());
    return values;
  }
  // Copies large tensors with several threads; none may be read before.
  void finish() {
    parallel_tasks(std::ssize(pending_), [&](std::int64_t i) {
      const Copy& copy = pending_[static_cast<std::size_t>(i)];
      std::memcpy(copy.to, copy.from.data(), copy.from.size());
    });
    pending_.clear();
  }
  void refuse_strangers() const {
    for (const TensorView& view : file_.tensors()) {
      if (seen_.contains(view.name)) continue;
      throw InputError(where() + ": unexpected tensor '" + view.name + "' in a statistics file");
    }
  }
  std::string where() const { return file_.path().string(); }

 private:
  void require_dtype(const TensorView& view, DType dtype) const {
    if (view.dtype != dtype) {
      throw InputError(where() + ": tensor '" + view.name + "' is " + view.type_text() + ", expected " +
                       dtype_name(dtype));
    }
  }
  // A copy, because the view may be unaligned and callers may change the tensor.
  at::Tensor copy(const TensorView& view, DType dtype) {
    require_dtype(view, dtype);
    at::Tensor t = at::empty(view.shape, at::TensorOptions(dtype == DType::kF64 ? at::kDouble : at::kFloat));
    if (view.data.size() >= kLarge) {
      pending_.push_back({t.mutable_data_ptr(), view.data});
    } else if (!view.data.empty()) {
      std::memcpy(t.mutable_data_ptr(), view.data.data(), view.data.size());
    }
    return t;
  }

  const SafetensorsFile& file_;
  std::shared_ptr<const SafetensorsFile> keep_;
  std::set<std::string> seen_;
  struct Copy {
    void* to;
    std::span<const std::byte> from;
  };
  std::vector<Copy> pending_;
};

std::string entry(const SafetensorsFile& file, const char* key) {
  const auto it = file.metadata().find(key);
  return it == file.metadata().end() ? std::string() : it->second;
}

Json read_metadata(const SafetensorsFile& file) {
  const std::string where = file.path().string();
  if (entry(file, "format") != kStatisticsFormat) {
    throw InputError(where +
                     ": is a safetensors file but not a statistics file of oscar-collect (metadata 'format' is '" +
                     entry(file, "format") + "', expected '" + kStatisticsFormat + "')");
  }
  const std::string version = entry(file, "format_version");
  if (version.empty() || version.size() > 9 || version.find_first_not_of("0123456789") != std::string::npos ||
      std::stoll(version) < 1) {
    throw InputError(where + ": metadata 'format_version' is " + quote_name(version) + ", expected a number from 1");
  }
  if (std::stoll(version) > kStatisticsVersion) {
    throw InputError(where + ": was written in statistics format " + version + ", this program reads up to " +
                     std::to_string(kStatisticsVersion) + "; use a newer oscar");
  }
  if (std::stoll(version) < kStatisticsVersion) {
    throw InputError(where + ": was written in statistics format " + version + ", this program reads format " +
                     std::to_string(kStatisticsVersion) + "; collect the statistics again");
  }
  return parse_json(entry(file, "oscar"), where + " (metadata)");
}

// Checks a list of texts, if there is one.
void check_texts(const Json& object, const char* key, const std::string& where) {
  if (!object.contains(key)) return;
  for (const Json& item : json_array(object, key, where)) {
    if (!item.is_string()) throw InputError(where + ": '" + key + "' holds " + item.type_name() + ", expected texts");
  }
}

// A shard may be empty, if there were more shards than steps; its numbers of the full run may not be 0.
void check_shard(const Json& shard, const std::string& where) {
  const std::int64_t of = json_int_within(shard, "of", where, 2, kMaxShards);
  json_int_within(shard, "index", where, 1, of);
  json_int_within(shard, "tokens", where, 1, kMaxTokens);
  json_int_within(shard, "sequences", where, 1, kMaxTokens);
}

void check_part(const Json& part, const std::string& where) {
  const Json& prompts = json_object(part, "prompts", where);
  json_string(prompts, "sha256", where);
  for (const char* key : {"documents", "passages", "files"}) check_texts(prompts, key, where);
  const bool shard = part.contains("shard");
  if (shard) check_shard(json_object(part, "shard", where), where);
  json_int_within(part, "tokens", where, shard ? 0 : 1, kMaxTokens);
  json_int_within(part, "sequences", where, shard ? 0 : 1, kMaxTokens);
  if (shard) json_int_within(part, "longest_sequence", where, 0, kMaxTokens);
  if (part.contains("options")) json_object(part, "options", where);
}

// Checks the parts of the metadata that merge and show rely on.
void check_records(const Json& metadata, const std::string& where) {
  json_string(json_object(metadata, "model", where), "revision", where, "");
  if (metadata.contains("rows")) {
    const Json& rows = json_object(metadata, "rows", where);
    json_int_within(rows, "requested", where, 1, kMaxTokens);
  }
  if (!metadata.contains("parts")) return;
  for (const Json& part : json_array(metadata, "parts", where)) check_part(part, where);
}

// Runs in a file of several runs are complete ones: merge refuses shards among other parts.
void require_shard_alone(const Json& metadata, const std::string& where) {
  if (!metadata.contains("parts") || metadata["parts"].size() < 2) return;
  for (const Json& part : metadata["parts"]) {
    if (part.contains("shard")) throw InputError(where + ": one of several parts is a shard; merge its run again");
  }
}

Statistics read(const SafetensorsFile& file, std::shared_ptr<const SafetensorsFile> keep) {
  const std::string where = file.path().string() + " (metadata)";
  Statistics s;
  s.metadata = read_metadata(file);
  if (json_int_within(s.metadata, "format_version", where, 1, 1000000) != kStatisticsVersion) {
    throw InputError(where + ": 'format_version' of the JSON and of the file differ");
  }
  const Json& model = json_object(s.metadata, "model", where);
  s.model_fingerprint = json_string(model, "fingerprint", where);
  s.model_name = read_model_name(json_string(model, "name", where), where);
  s.architecture = json_string(model, "architecture", where);
  const std::int64_t layers = json_int_within(model, "layers", where, 1, kMaxLayers);
  s.query_heads = json_int_within(model, "query_heads", where, 1, kMaxHeads);
  s.kv_heads = json_int_within(model, "kv_heads", where, 1, kMaxHeads);
  s.head_dim = json_int_within(model, "head_dim", where, 1, kMaxHeadDim);
  s.hidden = json_int_within(model, "hidden", where, 1, kMaxHidden);
  s.tokens = json_int_within(s.metadata, "tokens", where, is_shard(s) ? 0 : 1, kMaxTokens);

  s.max_position = json_int(model, "max_position", where);
  s.attention_scale = json_number(model, "attention_scale", where);
  s.rope_scale = json_number(model, "rope_scale", where);
  if (model.contains("rope_dim")) s.rope_dim = json_int_within(model, "rope_dim", where, 1, kMaxHeadDim);
  if (s.rope_dim > 0 && s.kv_heads != 1) {
    throw InputError(where + ": 'rope_dim' is for latent attention, which has one KV head; found " +
                     std::to_string(s.kv_heads));
  }
  if (model.contains("rope_reach")) s.rope_reach = json_int_within(model, "rope_reach", where, 1, kMaxTokens);
  check_records(s.metadata, where);
  require_shard_alone(s.metadata, where);

  TensorReader reader(file, std::move(keep));
  const auto priority = reader.list<std::uint64_t>("rows.priority", DType::kU64);
  const auto position = reader.list<std::int64_t>("rows.position", DType::kI64);
  s.embedding_energy = reader.optional("embedding_energy", DType::kF64);
  s.rope_frequency = reader.required("rope_frequency", DType::kF64);
  s.left_out = read_left_out(model, layers, where);
  s.layers.resize(static_cast<std::size_t>(layers) - s.left_out.size());
  for (std::size_t i = 0; i < s.layers.size() && s.tokens > 0; ++i) {
    LayerMoments& layer = s.layers[i];
    const std::string number = std::to_string(s.number(i)), prefix = "layers." + number + ".";
    for (const MomentField& field : kMomentFields) {
      layer.*field.tensor = reader.required(prefix + field.name, DType::kF64);
    }
    for (const MetricField& field : kFarPairFields) {
      layer.*field.tensor = reader.optional(prefix + field.name, DType::kF64);
    }
    for (const EnergyField& field : kEnergyFields) {
      layer.*field.tensor = field.required ? reader.required(prefix + field.name, DType::kF64)
                                           : reader.optional(prefix + field.name, DType::kF64);
    }
    for (const RowField& field : kRowFields) layer.*field.tensor = reader.rows("rows." + number + "." + field.name);
    layer.row_priority = priority;
    layer.row_position = position;
  }
  reader.finish();
  reader.refuse_strangers();
  check_statistics(s, file.path().string());
  return s;
}

}  // namespace

Statistics read_statistics(const SafetensorsFile& file) { return read(file, nullptr); }

Statistics load_part(const fs::path& path) { return read_statistics(SafetensorsFile::open(path)); }

Statistics load_statistics(const fs::path& path) {
  const auto file = std::make_shared<const SafetensorsFile>(SafetensorsFile::open(path));
  Statistics s = read(*file, file);
  if (s.tokens > 0) return s;
  throw InputError(path.string() + ": is " + shard_name(s) + " of a run and got no sequence; add up all shards with " +
                   "oscar-collect merge, and use what it writes");
}

}  // namespace oscar
