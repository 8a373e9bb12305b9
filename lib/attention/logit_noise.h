// Run-time correction of the logits of coded keys (arXiv 2605.26266).
//
// The error e of a coded key adds <q, e> to its logit. With errors of mean 0 and a logit variance of s^2 the weight
// exp(logit) of the key grows on average by exp(s^2 / 2), while keys in BF16 keep theirs: attention drifts to coded
// keys that it should not look at. The remedy subtracts what is expected, before a soft cap:
//   logit_j -= s_j^2 / 2,  s_j^2 = scale^2 sum_g v_jg |q_g|^2
// v_jg is the variance of a channel's error in scale group g of key j. Errors are taken as spread evenly over a step,
// v = step^2 / 12, so that scale and query are all that a reader needs. Codebooks and floating-point formats tell no
// step: their logits are left alone. A block of width 0 has no step either: what it leaves out is no noise.
//
// In one product with the logit itself: queries are made longer by -scale/2 |q_g|^2, keys by v_jg.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "attention/prefill_core.h"
#include "cache/kv_method.h"

namespace oscar {

// What queries are made longer by, [T, Hq, runs] FP32 before the layer's scale is applied to them. q: [T, Hq, d] FP32
// in the basis of the cache; runs: of channels that share a variance.
at::Tensor noise_queries(const KvMethod& method, std::int64_t layer, const at::Tensor& q, std::int64_t runs,
                         double scale);

// Makes the keys longer by their noise, rows in BF16 by zeros. keys.noise must be defined.
void add_noise(CachedRows& keys);

}  // namespace oscar
