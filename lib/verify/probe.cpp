#include "verify/probe.h"

#include <ATen/ATen.h>

#include "verify/forward.h"

namespace oscar {

ProbedMethod::ProbedMethod(const KvMethod& m, const ModelConfig& model)
    : method(&m),
      attention(m),
      sums(static_cast<std::size_t>(model.layers)),
      cache(std::make_unique<CacheChecker>(m, model)) {}

std::vector<LayerError> ProbedMethod::layers() const {
  std::vector<LayerError> errors;
  if (!method->quantised) return errors;
  for (std::size_t l = 0; l < sums.size(); ++l) errors.push_back(sums[l].result(static_cast<std::int64_t>(l)));
  return errors;
}

at::Tensor LayerProbe::attend(const AttentionInput& input) {
  const at::Tensor exact = baseline_.attend(input);
  for (ProbedMethod& probed : methods_) {
    stop_if_interrupted();
    const at::Tensor output = probed.method->quantised ? probed.attention.attend(input) : exact;
    if (check_caches_) probed.cache->check_layer(input, output);
    if (!probed.method->quantised) continue;
    LayerErrorSums& sums = probed.sums.at(static_cast<std::size_t>(input.layer));
    add_logit_error(input, *probed.method, sums);
    add_output_error(exact, output, first_, sums);
  }
  return exact;
}

}  // namespace oscar
