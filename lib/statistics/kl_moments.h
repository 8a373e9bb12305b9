// Second moments of the KL metric of one layer: sums over tokens j of g_j^T g_j, g_j = dL/dk_j (keys after RoPE, and
// the same turned back to position 0) or dL/dv_j through far pairs, L = the sum of z . logits (output_gradient.h).
// Errors e_j that are independent of each other then cost sum_j e_j (g_j^T g_j) e_j^T / 2 nats, in expectation over z.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "statistics/layer_gradient.h"
#include "statistics/statistics.h"
#include "statistics/unrotation.h"

namespace oscar {

class KlAccumulator {
 public:
  KlAccumulator(std::int64_t kv_heads, std::int64_t head_dim, at::Device device);

  void begin_layer(const LayerMoments* partial);  // partial: null, or sums to go on from
  // Packed sequences, and the probes that they had. rows: of their positions.
  void add(const LayerGradient& gradient, const Unrotation::Rows& rows, std::int64_t probes);
  void store(LayerMoments& out) const;   // kl_k_gram, kl_pre_k_gram, kl_v_gram, kl_count as they are
  void finish(LayerMoments& out) const;  // the same, grams made exactly symmetric

 private:
  std::int64_t kv_heads_, head_dim_;
  at::Device device_;
  at::Tensor k_gram_, pre_k_gram_, v_gram_;  // [Hkv, d, d] FP64
  double probes_ = 0.0;
};

}  // namespace oscar
