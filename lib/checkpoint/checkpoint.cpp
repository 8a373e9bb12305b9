#include "checkpoint/checkpoint.h"

#include <sys/stat.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/json_rules.h"
#include "checkpoint/families/family.h"
#include "checkpoint/model_location.h"
#include "checkpoint/shard_index.h"

namespace oscar {
namespace {

constexpr std::uint64_t kMaxConfig = std::uint64_t{4} << 20, kMaxIndex = std::uint64_t{128} << 20;

bool present(const fs::path& path) {
  std::error_code ec;
  // A broken or cyclic link counts as present, so that opening it reports the fault.
  return fs::symlink_status(path, ec).type() != fs::file_type::not_found;
}

// transformers applies an adapter that is beside the weights.
void refuse_adapter(const fs::path& directory) {
  const fs::path adapter = directory / "adapter_config.json";
  if (!present(adapter)) return;
  throw InputError(adapter.string() +
                   ": an adapter lies beside the weights, which transformers adds to them and which is not read here; "
                   "merge it (merge_and_unload() of peft) and save the model, or remove this file to use the weights "
                   "without it");
}

bool same_tensor(const TensorView& a, const TensorView& b) {
  return a.dtype == b.dtype && a.other_type == b.other_type && a.shape == b.shape &&
         (a.data.data() == b.data.data() || std::equal(a.data.begin(), a.data.end(), b.data.begin(), b.data.end()));
}

}  // namespace

// Adds all tensors of the shards. An index may name tensors that they lack, which matters only if one is needed. It may
// lack tensors that they contain, which transformers loads anyway.
void Checkpoint::add_shard_tensors() {
  for (const SafetensorsFile& shard : shards_) {
    for (const TensorView& tensor : shard.tensors()) {
      const auto [found, fresh] = index_.emplace(tensor.name, &tensor);
      if (fresh || same_tensor(*found->second, tensor)) continue;
      throw InputError(location_.directory.string() + ": two shards hold the tensor " + quote_name(tensor.name) +
                       " with different numbers, and engines do not agree which of them counts; remove one of them");
    }
  }
}

// Files saved from the model without its head lack the name prefix: "layers.0...". transformers loads them too, also if
// only some names lack it.
void Checkpoint::add_prefix() {
  const std::string embedding = family_of(config_).embedding;
  const std::size_t dot = embedding.find('.') + 1;
  if (config_.text_tower || dot == 0) return;
  const std::string prefix = embedding.substr(0, dot);
  const auto lacks_it = [&](std::string_view name) {
    return name.starts_with("layers.") || name.starts_with("norm.") || name == embedding.substr(dot);
  };
  const auto outside = [&](std::string_view name) { return name.starts_with(prefix) || name.starts_with("lm_head."); };
  if (std::none_of(index_.begin(), index_.end(), [&](const auto& entry) { return lacks_it(entry.first); })) return;
  const bool all = !index_.contains(embedding);  // otherwise the file also holds names of other parts ("visual.x")
  std::map<std::string, const TensorView*, std::less<>> named;
  for (const auto& [name, tensor] : index_) {
    TensorView& copy = renamed_.emplace_back(*tensor);
    if (!outside(name) && (all || lacks_it(name))) {
      copy.name = prefix + name;
      stored_names_[copy.name] = name;
    }
    named.emplace(copy.name, &copy);
  }
  if (named.size() != index_.size()) {
    throw InputError(location_.directory.string() + ": holds tensors twice, with the prefix '" + prefix +
                     "' and without it; remove one of them");
  }
  index_ = std::move(named);
}

std::string Checkpoint::stored_name(const std::string& name) const {
  const auto found = stored_names_.find(name);
  return found == stored_names_.end() ? name : found->second;
}

Checkpoint::Checkpoint(const ModelLocation& location) : location_(location) {
  const fs::path config = location.directory / "config.json";
  const Json document = read_python_json(config, kMaxConfig);
  config_ = parse_model_config(document, config.string());
  canonical_config_ = canonical_config(document);
  refuse_adapter(location.directory);
}

Checkpoint Checkpoint::open(const ModelLocation& location) {
  Checkpoint checkpoint(location);

  const fs::path single = location.directory / "model.safetensors";
  const fs::path index = location.directory / "model.safetensors.index.json";
  if (present(single)) {
    checkpoint.shards_.push_back(SafetensorsFile::open(single));
  } else if (present(index)) {
    const auto weight_map = parse_shard_index(read_file(index, kMaxIndex), index.string());
    std::set<std::string> files;
    for (const auto& [tensor, file] : weight_map) files.insert(file);
    std::set<std::pair<dev_t, ino_t>> opened;
    for (const std::string& file : files) {
      if (!present(location.directory / file)) {
        throw InputError(index.string() + ": the shard " + quote_name(file) + " is missing; complete the checkpoint");
      }
      // An index may name one file in several ways ("a", "./a", links); it is mapped and read once.
      struct stat info {};
      const bool known_file = ::stat((location.directory / file).c_str(), &info) == 0;
      const bool fresh = opened.emplace(info.st_dev, info.st_ino).second;
      if (fresh || !known_file) checkpoint.shards_.push_back(SafetensorsFile::open(location.directory / file));
    }
  } else {
    throw InputError(location.directory.string() +
                     ": has neither model.safetensors nor model.safetensors.index.json; weights in other formats "
                     "(pytorch_model.bin, GGUF) must be converted to safetensors first" +
                     gguf_advice(location.directory));
  }
  checkpoint.add_shard_tensors();
  checkpoint.add_prefix();
  return checkpoint;
}

Checkpoint Checkpoint::open_index(const ModelLocation& location) {
  const fs::path index = location.directory / "model.safetensors.index.json";
  if (present(location.directory / "model.safetensors") || !present(index)) return open(location);
  const std::string text = read_file(index, kMaxIndex);
  const auto weight_map = parse_shard_index(text, index.string());
  const auto here = [&](const auto& entry) { return present(location.directory / entry.second); };
  if (std::all_of(weight_map.begin(), weight_map.end(), here)) return open(location);
  Checkpoint checkpoint(location);
  checkpoint.bytes_of_index_ = parse_total_size(text, index.string());
  for (const auto& [tensor, file] : weight_map)
    checkpoint.names_only_.push_back({.name = tensor, .shape = {}, .data = {}});
  for (const TensorView& tensor : checkpoint.names_only_) checkpoint.index_.emplace(tensor.name, &tensor);
  checkpoint.add_prefix();
  return checkpoint;
}

const TensorView* Checkpoint::find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : it->second;
}

const TensorView& Checkpoint::at(std::string_view name) const {
  const TensorView* tensor = find(name);
  if (tensor == nullptr) {
    throw InputError(location_.directory.string() + ": the tensor " + quote_name(name) +
                     " is missing, which the architecture " + config_.architecture + " needs");
  }
  return *tensor;
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : index_) names.push_back(name);
  return names;
}

std::uint64_t Checkpoint::weight_bytes() const {
  std::uint64_t bytes = bytes_of_index_;
  for (const auto& [name, tensor] : index_) bytes += tensor->data.size();
  return bytes;
}

}  // namespace oscar
