// Second moments of keys and queries before RoPE. The moments at any position follow from them (side_moments.h of
// lib/fit), also at positions that the calibration prompts do not reach.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "collect/unrotation.h"
#include "model/attention.h"
#include "statistics/statistics.h"

namespace oscar {

class PreRopeAccumulator {
 public:
  PreRopeAccumulator(std::int64_t kv_heads, std::int64_t head_dim, at::Device device);
  void begin_layer();
  // rows: rotations of the input's batch.
  void add(const AttentionInput& input, const Unrotation::Rows& rows);
  // pre_q_gram, pre_k_gram, pre_k_sum on their device, with grams made exactly symmetric.
  void finish(LayerMoments& out) const;

 private:
  std::int64_t kv_heads_, head_dim_;
  at::Device device_;
  at::Tensor q_gram_, k_gram_, k_sum_;
};

}  // namespace oscar
