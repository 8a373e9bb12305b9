// Squared gradients of the sampled rows of one layer: g^2 with g = dL/dx of a key before RoPE or a value, L = the sum
// of log p of the true next tokens of the row's sequence, through all pairs of queries and keys. This is the empirical
// diagonal Fisher information that CQ (arXiv 2405.03917) and TaSQ (arXiv 2610.03027) weigh the errors of their
// codebooks by. (Their loss is the mean over a sequence: the same up to a factor for sequences of one length.)
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "model/rope.h"
#include "statistics/layer_gradient.h"
#include "statistics/row_sample.h"
#include "statistics/statistics.h"
#include "statistics/token_plan.h"
#include "statistics/unrotation.h"

namespace oscar {

class RowGradients {
 public:
  // sample: the row sample, in its order. rope: that statistics record (common_rope).
  RowGradients(std::int64_t kv_heads, std::int64_t head_dim, const RopeFrequencies& rope,
               const std::vector<SampledToken>& sample, at::Device device);

  void begin_layer(const LayerMoments* partial);  // partial: null, or rows to go on from
  // gradient.k and v [T, Hkv, d] of a step; rows: the rotations of its positions.
  void add(const LayerGradient& gradient, const Step& step, const Unrotation::Rows& rows);
  void store(LayerMoments& out) const;  // rows_*_squared_gradient; zeros where no label follows

 private:
  std::int64_t kv_heads_, head_dim_, turning_;
  double squared_scale_;                                         // of RoPE
  std::vector<std::pair<std::int64_t, std::int64_t>> by_token_;  // (token, row), ascending token
  at::Device device_;
  at::Tensor pre_k_, v_;  // [R, Hkv, d] FP32
};

}  // namespace oscar
