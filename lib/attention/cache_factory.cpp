#include "attention/cache_factory.h"

#include <stdexcept>

namespace oscar {

KvCacheSpec cache_spec(const KvMethod& method, const ModelConfig& model) {
  std::optional<KvCacheSpec> spec = method.coder->pages(method, model);
  if (!spec) throw std::invalid_argument("method " + method.id + " " + method.coder->no_pages());
  spec->kv_heads = model.kv_heads, spec->head_dim = model.head_dim;
  for (const Side side : {Side::kKey, Side::kValue}) {
    spec->sides[side == Side::kKey ? 0 : 1].windows = method.quantized ? method.windows_of(side) : all_in_sink();
  }
  return std::move(*spec);
}

std::unique_ptr<PagedBackend> make_backend(const KvMethod& method, const ModelConfig& model, at::Device device) {
  return device.is_cuda() ? make_cuda_backend(method, model, device) : make_cpu_backend(method, model);
}

}  // namespace oscar
