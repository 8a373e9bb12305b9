#include "moments/work_directory.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "base/errors.h"
#include "base/hash.h"
#include "base/log.h"
#include "checkpoint/safetensors.h"
#include "moments/layer_fields.h"

namespace oscar {
namespace {

constexpr const char* kRun = "run.json";
constexpr const char* kPoint = "point.safetensors";

std::string layer_name(std::int64_t layer) {
  char name[40];
  std::snprintf(name, sizeof name, "layer-%04lld.safetensors", static_cast<long long>(layer));
  return name;
}

// Whether a file of this name is one of ours, finished or left half-written by a killed run.
bool is_run_file(const std::string& name) {
  static const std::set<std::string> kNames = {"lock", kRun, kPoint, "hidden-0.bin", "hidden-1.bin", "kv.bin"};
  const std::string stem = name.substr(0, name.find(".tmp."));
  if (kNames.contains(stem)) return true;
  return stem.rfind("layer-", 0) == 0 && stem.size() > 12 && stem.substr(stem.size() - 12) == ".safetensors";
}

void remove_run_files(const fs::path& directory, bool temporaries_only) {
  std::error_code ec;
  std::vector<fs::path> doomed;
  for (const auto& entry : fs::directory_iterator(directory, ec)) {
    const std::string name = entry.path().filename().string();
    if (!is_run_file(name)) continue;
    if (temporaries_only && name.find(".tmp.") == std::string::npos) continue;
    doomed.push_back(entry.path());
  }
  for (const fs::path& path : doomed) fs::remove(path, ec);
}

std::string option_flag(std::string key) {
  for (char& c : key) {
    if (c == '_') c = '-';
  }
  return "--" + key;
}

std::string value_text(const Json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

// Throws naming the first difference between the run that is in the directory and the one that was asked for.
void require_same_run(const fs::path& path, const Json& found, const Json& wanted) {
  const std::string where = path.string() + ": the run in it ";
  const std::string advice = "; continue with what it was started with, or delete the directory to start anew";
  const auto differs = [&](const char* key) {
    const Json f = found.value(key, Json()), w = wanted.value(key, Json());
    return f != w;
  };
  if (differs("model")) {
    throw InputError(where + "is of another model (fingerprint " + value_text(found.value("model", Json())) + ", now " +
                     value_text(wanted["model"]) + ")" + advice);
  }
  if (differs("prompts")) throw InputError(where + "has other prompts or another tokenizer" + advice);
  const Json found_options = found.value("options", Json::object());
  for (const auto& item : wanted["options"].items()) {
    const Json before = found_options.value(item.key(), Json());
    if (before == item.value()) continue;
    throw UsageError(where + "has " + option_flag(item.key()) + " " + value_text(before) + ", this one " +
                     value_text(item.value()) + advice);
  }
  if (differs("tool_version")) {
    throw UsageError(where + "was started by version " + value_text(found.value("tool_version", Json())) +
                     " of this program, this is " + value_text(wanted["tool_version"]) + advice);
  }
}

// Named tensors of a file and their memory, until it is written.
struct TensorFile {
  std::vector<at::Tensor> kept;
  std::vector<TensorView> views;

  void add(const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    const at::Tensor flat = tensor.cpu().contiguous();
    kept.push_back(flat);
    views.push_back({name,
                     flat.scalar_type() == at::kDouble ? DType::kF64 : DType::kF32,
                     flat.sizes().vec(),
                     {static_cast<const std::byte*>(flat.const_data_ptr()), flat.nbytes()}});
  }
  void add_layer(const LayerMoments& moments) {
    for (const MomentField& field : kMomentFields) add(field.name, moments.*field.tensor);
    for (const RowField& field : kRowFields) add(std::string("rows_") + field.name, moments.*field.tensor);
    for (const FisherField& field : kFisherFields) add(field.name, moments.*field.tensor);
    add("residual_energy", moments.residual_energy);
  }
};

at::Tensor tensor_of(const SafetensorsFile& file, const std::string& name) {
  const TensorView* view = file.find(name);
  if (view == nullptr) return {};
  if (view->dtype != DType::kF64 && view->dtype != DType::kF32) {
    throw InputError(file.path().string() + ": tensor '" + name + "' is " + dtype_name(view->dtype) +
                     ", so the work directory is damaged; start the run anew");
  }
  at::Tensor t = at::empty(view->shape, at::TensorOptions(view->dtype == DType::kF64 ? at::kDouble : at::kFloat));
  if (!view->data.empty()) std::memcpy(t.mutable_data_ptr(), view->data.data(), view->data.size());
  return t;
}

LayerMoments layer_of(const SafetensorsFile& file) {
  LayerMoments out;
  for (const MomentField& field : kMomentFields) out.*field.tensor = tensor_of(file, field.name);
  for (const RowField& field : kRowFields) out.*field.tensor = tensor_of(file, std::string("rows_") + field.name);
  for (const FisherField& field : kFisherFields) out.*field.tensor = tensor_of(file, field.name);
  out.residual_energy = tensor_of(file, "residual_energy");
  return out;
}

Json read_state(const SafetensorsFile& file, const std::string& run_id) {
  const auto state = file.metadata().find("state");
  if (state == file.metadata().end()) {
    throw InputError(file.path().string() + ": holds no state of a run; delete the directory to start anew");
  }
  Json json = parse_json(state->second, file.path().string());
  if (json_string(json, "run", file.path().string()) != run_id) {
    throw InputError(file.path().string() + ": belongs to another run; delete the directory to start anew");
  }
  return json;
}

}  // namespace

WorkDirectory::WorkDirectory(const fs::path& path, const Json& run, bool resume) : path_(path) {
  make_directory(path);
  lock_.emplace(path / "lock");
  if (fs::exists(path / kRun)) {
    if (!resume) {
      throw UsageError(path.string() + ": holds an unfinished run; continue it with --resume, or delete it");
    }
    const std::string text = read_file(path / kRun, 1 << 20);
    const Json found = parse_json(text, (path / kRun).string());
    require_same_run(path, found, run);
    threads_ = static_cast<int>(std::clamp<std::int64_t>(json_int(found, "threads", (path / kRun).string()), 1, 1024));
    run_id_ = sha256_hex(text);
    remove_run_files(path, true);
    return;
  }
  if (resume) log_info(path.string() + ": holds no run to resume; starting one");
  remove_run_files(path, true);
  fs::remove(path / kPoint);
  const std::string text = dump_json(run);
  threads_ = static_cast<int>(json_int(run, "threads", kRun));
  run_id_ = sha256_hex(text);
  write_file_atomic(path / kRun, text);
}

std::optional<ResumePoint> WorkDirectory::load_point() const {
  if (!fs::exists(path_ / kPoint)) return std::nullopt;
  const SafetensorsFile file = SafetensorsFile::open(path_ / kPoint);
  const Json state = read_state(file, run_id_);
  const std::string where = file.path().string();
  ResumePoint point;
  point.layer = json_int(state, "layer", where);
  point.step = json_int(state, "step", where);
  point.sums = layer_of(file);
  point.embedding_energy = tensor_of(file, "embedding_energy");
  if (point.layer < 0 || point.step < 0 || !point.embedding_energy.defined()) {
    throw InputError(where + ": is damaged; delete the directory to start anew");
  }
  return point;
}

void WorkDirectory::save_point(const ResumePoint& point) const {
  TensorFile file;
  file.add("embedding_energy", point.embedding_energy);
  file.add_layer(point.sums);
  const Json state = {{"run", run_id_}, {"layer", point.layer}, {"step", point.step}};
  write_safetensors(path_ / kPoint, file.views, {{"state", state.dump()}});
}

LayerMoments WorkDirectory::load_layer(std::int64_t layer) const {
  const SafetensorsFile file = SafetensorsFile::open(path_ / layer_name(layer));
  const Json state = read_state(file, run_id_);
  if (json_int(state, "layer", file.path().string()) != layer) {
    throw InputError(file.path().string() + ": holds another layer; delete the directory to start anew");
  }
  LayerMoments moments = layer_of(file);
  bool whole = moments.residual_energy.defined();
  for (const MomentField& field : kMomentFields) whole = whole && (moments.*field.tensor).defined();
  for (const RowField& field : kRowFields) whole = whole && (moments.*field.tensor).defined();
  if (!whole) throw InputError(file.path().string() + ": is incomplete; delete the directory to start anew");
  return moments;
}

void WorkDirectory::save_layer(std::int64_t layer, const LayerMoments& moments) const {
  TensorFile file;
  file.add_layer(moments);
  const Json state = {{"run", run_id_}, {"layer", layer}};
  write_safetensors(path_ / layer_name(layer), file.views, {{"state", state.dump()}});
}

void WorkDirectory::remove() {
  std::error_code ec;
  fs::remove(path_ / kRun, ec);  // first: what is left of a half-removed directory is then no run
  remove_run_files(path_, false);
  fs::remove(path_, ec);  // fails, as it should, when the directory holds other files
  lock_.reset();
}

}  // namespace oscar
