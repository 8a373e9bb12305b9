#include "runtime/paged_cache_input.h"

#include <ATen/ATen.h>

#include "model/phase_table.h"
#include "runtime/basis.h"

namespace oscar {

std::vector<LayerCacheSpec> layer_specs(const KvMethod& method, const ModelConfig& model) {
  std::vector<LayerCacheSpec> specs(static_cast<std::size_t>(model.layers));
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    LayerCacheSpec& spec = specs[static_cast<std::size_t>(layer)];
    spec.quantised = method.quantised;
    for (std::int64_t head = 0; head < model.kv_heads; ++head) {
      spec.key.push_back(method.codec(layer, Side::kKey, head));
      spec.value.push_back(method.codec(layer, Side::kValue, head));
    }
  }
  return specs;
}

at::Tensor new_key_rows(const KvMethod& method, const AttentionInput& input) {
  const SideTransform* key = method.transform(input.layer, Side::kKey);
  if (key == nullptr || !key->rotated_mean) return cache_rows(input.k, key);
  std::vector<at::Tensor> phases;
  for (std::size_t s = 0; s < input.batch->lengths.size(); ++s) {
    phases.push_back(method.phases->rows(input.batch->starts[s], input.batch->lengths[s]));
  }
  return cache_rows(input.k, key, at::cat(phases));
}

at::Tensor new_value_rows(const KvMethod& method, const AttentionInput& input) {
  return cache_rows(input.v, method.transform(input.layer, Side::kValue));
}

}  // namespace oscar
