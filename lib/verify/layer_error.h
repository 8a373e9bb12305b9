// Error of one method in one layer, against exact attention on the same inputs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "model/attention.h"
#include "runtime/method.h"
#include "verify/report.h"

namespace oscar {

// Sums over sequences; all in FP64.
struct LayerErrorSums {
  double logit_error = 0, logit_energy = 0;    // squared, each query's mean over its quantised keys removed
  double output_error = 0, output_energy = 0;  // squared norms

  LayerError result(std::int64_t layer) const;
};

// Key logits: up to 64 evenly spaced queries of the sequence against every quantised key they see, q k^T against
// q' khat^T in the basis of the cache. The mean over keys is removed because softmax does not see it (a centred cache
// shifts all logits of a query alike).
void add_logit_error(const AttentionInput& input, const KvMethod& method, LayerErrorSums& sums);

// Outputs [T, Hq, d] of the exact and of the method's attention, from position `first` on.
void add_output_error(const at::Tensor& exact, const at::Tensor& method, std::int64_t first, LayerErrorSums& sums);

}  // namespace oscar
