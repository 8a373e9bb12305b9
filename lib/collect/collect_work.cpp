#include "collect/collect_work.h"

#include <ATen/ATen.h>

#include <charconv>
#include <cstring>
#include <vector>

#include "base/errors.h"
#include "base/formatted.h"
#include "base/hash.h"
#include "checkpoint/run_tensors.h"
#include "statistics/layer_fields.h"

namespace oscar {
namespace {

constexpr const char* kPoint = "point.safetensors";

std::string layer_name(std::int64_t layer) {
  return formatted("layer-%04lld.safetensors", static_cast<long long>(layer));
}

bool is_run_file(const std::string& name) {
  if (name == kPoint || name == "kv.bin" || name == share_name(0)) return true;
  const auto number = [&](const std::string& prefix, std::size_t fewest) -> std::int64_t {  // -1: none
    if (!name.starts_with(prefix)) return -1;
    const std::string digits = name.substr(prefix.size(), name.find('.') - prefix.size());
    if (digits.size() < fewest || digits.size() > 9) return -1;
    return digits.find_first_not_of("0123456789") == std::string::npos ? std::stoll(digits) : -1;
  };
  const std::int64_t layer = number("layer-", 4), hidden = number("hidden-", 1), share = number("share-", 1);
  return (layer >= 0 && name == layer_name(layer)) || (share > 0 && name == share_name(static_cast<int>(share))) ||
         (hidden >= 0 && name == "hidden-" + std::to_string(hidden) + ".bin");
}

// Named tensors of a file; holds their memory until the file is written.
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
    for (const MetricField& field : kFarPairFields) add(field.name, moments.*field.tensor);
    for (const EnergyField& field : kEnergyFields) add(field.name, moments.*field.tensor);
  }
};

at::Tensor tensor_of(const SafetensorsFile& file, const std::string& name) {
  const TensorView* view = file.find(name);
  if (view == nullptr) return {};
  if (view->dtype != DType::kF64 && view->dtype != DType::kF32) {
    throw InputError(file.path().string() + ": tensor '" + name + "' is " + view->type_text() +
                     ", so the work directory is damaged; delete it to start anew");
  }
  at::Tensor t = at::empty(view->shape, at::TensorOptions(view->dtype == DType::kF64 ? at::kDouble : at::kFloat));
  if (!view->data.empty()) std::memcpy(t.mutable_data_ptr(), view->data.data(), view->data.size());
  return t;
}

LayerMoments layer_of(const SafetensorsFile& file) {
  LayerMoments out;
  for (const MomentField& field : kMomentFields) out.*field.tensor = tensor_of(file, field.name);
  for (const RowField& field : kRowFields) out.*field.tensor = tensor_of(file, std::string("rows_") + field.name);
  for (const MetricField& field : kFarPairFields) out.*field.tensor = tensor_of(file, field.name);
  for (const EnergyField& field : kEnergyFields) out.*field.tensor = tensor_of(file, field.name);
  return out;
}

SpoolSum read_sum(const Json& state, const char* name, const std::string& where) {
  const Json& found = json_object(state, name, where);
  const std::string text = json_string(found, "checksum", where);
  SpoolSum sum{json_int(found, "rows", where), 0};
  const char* end = text.data() + text.size();
  if (text.size() != 16 || std::from_chars(text.data(), end, sum.sum, 16).ptr != end || sum.rows < 0) {
    damaged_run(where, "'" + std::string(name) + "' is no checksum of rows");
  }
  return sum;
}

Json read_state(const SafetensorsFile& file) {
  const auto state = file.metadata().find("state");
  if (state == file.metadata().end()) {
    throw InputError(file.path().string() + ": holds no state of a run; delete the directory to start anew");
  }
  return parse_json(state->second, file.path().string());
}

}  // namespace

std::string share_name(int rank) {
  return rank == 0 ? "share.safetensors" : "share-" + std::to_string(rank) + ".safetensors";
}

ResumePoint read_point(const SafetensorsFile& file) {
  const Json state = read_state(file);
  const std::string where = file.path().string();
  ResumePoint point{.layer = json_int(state, "layer", where),
                    .embedding_energy = tensor_of(file, "embedding_energy"),
                    .entering = read_sum(state, "entering", where),
                    .run = json_string(state, "run", where)};
  if (point.layer < 0) throw InputError(where + ": names a negative layer; delete the directory to start anew");
  return point;
}

WorkDirectory::WorkDirectory(const fs::path& path, const Json& run, bool resume)
    : run_(path, run, resume,
           {{"model", "is of another model (its fingerprint differs)"},
            {"prompts", "has other prompts or another tokenizer"}},
           is_run_file) {}

std::optional<ResumePoint> WorkDirectory::load_point() const {
  if (!fs::exists(file(kPoint))) return std::nullopt;
  ResumePoint point = read_point(open_run_tensors(file(kPoint)));
  run_.require_own(point.run, file(kPoint));
  return point;
}

void WorkDirectory::save_point(const ResumePoint& point) const {
  TensorFile file;
  file.add("embedding_energy", point.embedding_energy);
  const Json state = {{"run", run_.run_id()},
                      {"layer", point.layer},
                      {"entering", {{"rows", point.entering.rows}, {"checksum", checksum_hex(point.entering.sum)}}}};
  save_run_tensors(this->file(kPoint), file.views, {{"state", state.dump()}});
}

fs::path WorkDirectory::layer_file(std::int64_t layer) const { return file(layer_name(layer)); }

LayerMoments WorkDirectory::load_layer(std::int64_t layer) const {
  const SafetensorsFile file = open_run_tensors(layer_file(layer));
  const Json state = read_state(file);
  run_.require_own(json_string(state, "run", file.path().string()), file.path());
  if (json_int(state, "layer", file.path().string()) != layer) {
    throw InputError(file.path().string() + ": holds another layer; delete the directory to start anew");
  }
  return layer_of(file);
}

void WorkDirectory::save_layer(std::int64_t layer, const LayerMoments& moments) const {
  TensorFile file;
  file.add_layer(moments);
  const Json state = {{"run", run_.run_id()}, {"layer", layer}};
  save_run_tensors(layer_file(layer), file.views, {{"state", state.dump()}});
}

}  // namespace oscar
