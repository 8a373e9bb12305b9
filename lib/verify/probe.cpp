#include "verify/probe.h"

#include <ATen/ATen.h>

#include "base/log.h"
#include "verify/forward.h"

namespace oscar {

ProbedMethod::ProbedMethod(const KvMethod& m, const ModelConfig& model, at::Device device)
    : method(&m), attention(m), sums(static_cast<std::size_t>(model.layers)) {
  if (!m.paged()) return;
  const std::string obstacle = decode_obstacle(m, model, device);
  if (!obstacle.empty()) {
    log_info("the pages of " + m.id + " are checked on the CPU: " + obstacle);
    device = at::kCPU;
  }
  cache = std::make_unique<CacheChecker>(m, model, device);
}

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
    if (check_caches_ && probed.cache) probed.cache->check_layer(input, output);
    if (!probed.method->quantised) continue;
    LayerErrorSums& sums = probed.sums.at(static_cast<std::size_t>(input.layer));
    if (!probed.method->quantised_at(input.layer)) continue;
    add_weight_errors(input, *probed.method, tiers_, sums);
    add_output_error(exact, output, first_, input.k.size(1), decoder_.layer_weights(input.layer).o, sums);
  }
  return exact;
}

}  // namespace oscar
