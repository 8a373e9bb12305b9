// Rotary position embedding (Su et al. 2021, arXiv:2104.09864) over half-split pairs: dimension i turns with i + d/2.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "checkpoint/model_config.h"
#include "model/attention.h"

namespace oscar {

struct RopeFrequencies {
  at::Tensor inverse;             // [d/2] FP32, radians per token, on the CPU
  double attention_factor = 1.0;  // multiplies cos and sin (yarn)
};

// default; linear: position interpolation (Chen et al. 2023, arXiv:2306.15595); llama3: the piecewise rule published
// with Llama 3.1; yarn: Peng et al. 2023, arXiv:2309.00071. The arithmetic is FP32 in the order transformers uses.
RopeFrequencies rope_frequencies(const RopeConfig& rope, std::int64_t head_dim, std::int64_t max_position);

struct RopeTable {
  at::Tensor cos, sin;  // [T, 1, d/2], computed in FP32, then cast to the activation dtype
};

RopeTable rope_table(const RopeFrequencies& frequencies, const SequenceBatch& batch, at::ScalarType dtype,
                     at::Device device);

// x [T, H, d] -> the rotated copy.
at::Tensor apply_rope(const at::Tensor& x, const RopeTable& table);

}  // namespace oscar
