// Rotary position embedding (Su et al. 2021, arXiv:2104.09864) over the first 2 P channels of a head: channel i turns
// with i + P, or with interleaved pairs 2i with 2i + 1. The others stay.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "checkpoint/model_config.h"
#include "model/attention.h"

namespace oscar {

struct RopeFrequencies {
  at::Tensor inverse;             // [P] FP32, radians per token, on the CPU
  double attention_factor = 1.0;  // multiplies cos and sin (yarn, longrope)
  bool interleaved = false;
};

// default; linear: position interpolation (Chen et al. 2023, arXiv:2306.15595); llama3: the piecewise rule published
// with Llama 3.1; yarn: Peng et al. 2023, arXiv:2309.00071; longrope: Ding et al. 2024, arXiv:2402.13753; dynamic: the
// NTK-aware base by length, as yarn's authors describe it. Those two are of rope.run_length. proportional: the first
// pairs of each head turn with the frequencies that they have when all do (Gemma 4). The arithmetic is FP32 in
// the order transformers uses.
RopeFrequencies rope_frequencies(const RopeConfig& rope, std::int64_t head_dim, std::int64_t max_position);

// Of the rotation that every layer has in half-split pairs, which statistics can take back. P = 0 where layers differ
// (Gemma 3, SmolLM3), pairs are interleaved (GLM-4), only channels behind a latent turn (DeepSeek) or a norm with
// weights follows (Hunyuan): nothing is taken back.
RopeFrequencies common_rope(const ModelConfig& config);
// Tokens of the longest context at which RoPE has the frequencies of this run; 0: at any.
std::int64_t rope_reach(const ModelConfig& config);
// InputError unless common_rope() turns all channels; `what` cannot do without: "centering before RoPE".
void require_full_rope(const ModelConfig& config, const std::string& what);

struct RopeTable {
  at::Tensor cos, sin;  // [T, 1, P], computed in FP32, then cast to the activation dtype; undefined: no rotation
  bool interleaved = false;
  at::Tensor query_scale;  // [T, 1, 1] FP32, multiplies queries after the rotation; undefined: 1
};

// [T, 1, 1] FP32: QueryScale at the positions of `batch`.
at::Tensor query_scales(const QueryScale& scale, const SequenceBatch& batch, at::Device device);

RopeTable rope_table(const RopeFrequencies& frequencies, const SequenceBatch& batch, at::ScalarType dtype,
                     at::Device device);

// x [T, H, d] -> the rotated copy; x itself without a rotation.
at::Tensor apply_rope(const at::Tensor& x, const RopeTable& table);

}  // namespace oscar
