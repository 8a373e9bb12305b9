#include <ATen/ATen.h>

#include <utility>

#include "checkpoint/safetensors.h"
#include "layout/left_out.h"
#include "statistics/layer_fields.h"
#include "statistics/statistics.h"
#include "statistics/statistics_format.h"

namespace oscar {
namespace {

// Collects views of tensors and keeps the memory they point to alive until the file is written.
class ViewList {
 public:
  void add(const std::string& name, const at::Tensor& tensor, DType dtype) {
    const at::Tensor flat = tensor.to(at::kCPU, dtype == DType::kF64 ? at::kDouble : at::kFloat).contiguous();
    kept_.push_back(flat);
    views_.push_back({name, dtype, flat.sizes().vec(), bytes(flat.const_data_ptr(), flat.nbytes())});
  }
  template <typename T>
  void add(const std::string& name, const std::vector<T>& values, DType dtype) {
    views_.push_back(
        {name, dtype, {static_cast<std::int64_t>(values.size())}, bytes(values.data(), values.size() * sizeof(T))});
  }
  std::vector<TensorView> take() { return std::move(views_); }

 private:
  static std::span<const std::byte> bytes(const void* data, std::size_t size) {
    return {static_cast<const std::byte*>(data), size};
  }
  std::vector<at::Tensor> kept_;
  std::vector<TensorView> views_;
};

}  // namespace

Json statistics_metadata(const Statistics& s) {
  Json out;
  out["format_version"] = kStatisticsVersion;
  const Json given = s.metadata.is_object() ? s.metadata : Json::object();
  if (given.contains("tool")) out["tool"] = given["tool"];
  Json model = given.value("model", Json::object());
  model["name"] = s.model_name;
  model["fingerprint"] = s.model_fingerprint;
  model["architecture"] = s.architecture;
  model["layers"] = s.model_layers();
  model.erase("left_out");
  if (!s.left_out.empty()) model["left_out"] = left_out_json(s.left_out);
  model["query_heads"] = s.query_heads;
  model["kv_heads"] = s.kv_heads;
  model["head_dim"] = s.head_dim;
  model["hidden"] = s.hidden;
  model["max_position"] = s.max_position;
  model["attention_scale"] = s.attention_scale;
  model["rope_scale"] = s.rope_scale;
  model.erase("rope_reach");
  if (s.rope_reach > 0) model["rope_reach"] = s.rope_reach;
  model.erase("rope_dim");
  if (s.rope_dim > 0) model["rope_dim"] = s.rope_dim;
  out["model"] = std::move(model);
  out["tokens"] = s.tokens;
  for (const auto& item : given.items()) {
    if (!out.contains(item.key())) out[item.key()] = item.value();
  }
  return out;
}

void save_statistics(const Statistics& s, const fs::path& path, bool durable) {
  check_statistics(s, path.string());
  ViewList views;
  for (std::size_t i = 0; i < s.layers.size() && s.tokens > 0; ++i) {
    const LayerMoments& layer = s.layers[i];
    const std::string prefix = "layers." + std::to_string(s.number(i)) + ".";
    for (const MomentField& field : kMomentFields) views.add(prefix + field.name, layer.*field.tensor, DType::kF64);
    for (const MetricField& field : kFarPairFields) {
      if ((layer.*field.tensor).defined()) views.add(prefix + field.name, layer.*field.tensor, DType::kF64);
    }
    for (const EnergyField& field : kEnergyFields) {
      if ((layer.*field.tensor).defined()) views.add(prefix + field.name, layer.*field.tensor, DType::kF64);
    }
    if (!layer.rows_q.defined()) continue;
    for (const RowField& field : kRowFields) {
      views.add("rows." + std::to_string(s.number(i)) + "." + field.name, layer.*field.tensor, DType::kF32);
    }
  }
  if (s.embedding_energy.defined()) views.add("embedding_energy", s.embedding_energy, DType::kF64);
  if (s.rope_frequency.defined()) views.add("rope_frequency", s.rope_frequency, DType::kF64);
  if (!s.layers.empty() && s.layers[0].rows_q.defined()) {
    views.add("rows.priority", s.layers[0].row_priority, DType::kU64);
    if (!s.layers[0].row_position.empty()) views.add("rows.position", s.layers[0].row_position, DType::kI64);
  }
  write_safetensors(path, views.take(),
                    {{"format", kStatisticsFormat},
                     {"format_version", std::to_string(kStatisticsVersion)},
                     {"oscar", statistics_metadata(s).dump()}},
                    durable);
}

}  // namespace oscar
