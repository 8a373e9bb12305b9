// Moments of keys and the phases of their positions (model/phase_table.h): from them follow the mean of the keys before
// RoPE, and the covariance of keys about that mean rotated to each position, exactly and without another pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "checkpoint/model_config.h"
#include "model/attention.h"
#include "model/rope.h"
#include "moments/statistics.h"

namespace oscar {

class PhaseAccumulator {
 public:
  PhaseAccumulator(const ModelConfig& config, at::Device device);
  void begin_layer(const LayerMoments* partial);  // partial: null, or sums to go on from
  void add(const AttentionInput& input);
  void store(LayerMoments& out) const;  // k_phase

 private:
  const at::Tensor& phases_of(const SequenceBatch& batch);

  RopeFrequencies frequencies_;
  std::int64_t kv_heads_, head_dim_;
  at::Device device_;
  at::Tensor sum_;                       // [Hkv, d, d] FP64
  std::vector<std::int64_t> positions_;  // of the rows below
  at::Tensor phases_;                    // [T, d] FP32 on the device
};

// Sum of c_p^T c_p over sequences of these lengths, each from position 0: [d, d] FP64.
at::Tensor phase_gram(const RopeFrequencies& frequencies, const std::vector<std::int64_t>& lengths);

// Keys about their rotated mean, [Hkv, d] and [Hkv, d, d] FP64. InputError where the statistics lack the sums.
struct RotatedKeyMoments {
  at::Tensor mean;        // before RoPE
  at::Tensor covariance;  // of k - RoPE_p(mean)
};
RotatedKeyMoments rotated_key_moments(const Statistics& statistics, std::size_t layer);

}  // namespace oscar
