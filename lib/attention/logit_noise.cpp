#include "attention/logit_noise.h"

#include <ATen/ATen.h>

namespace oscar {

at::Tensor noise_queries(const KvMethod& method, std::int64_t layer, const at::Tensor& q, std::int64_t runs,
                         double scale) {
  const at::Tensor x = method.coder->code_basis(layer, q);
  return x.reshape({x.size(0), x.size(1), runs, x.size(2) / runs}).square().sum(3) * (-0.5 * scale);
}

void add_noise(CachedRows& keys) {
  keys.plain = at::cat({keys.plain, at::zeros_like(keys.noise)}, 2);
  if (keys.coded.defined()) keys.coded = at::cat({keys.coded, keys.noise}, 2);
}

}  // namespace oscar
