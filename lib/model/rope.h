// Rotary position embedding (Su et al. 2021, arXiv:2104.09864) over the first 2 P channels of a head. It rotates
// channel i with i + P, or with interleaved pairs 2i with 2i + 1. The other channels do not change.
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

// The arithmetic is FP32 in the order transformers uses. Types:
// - default; linear: position interpolation (Chen et al. 2023, arXiv:2306.15595);
// - llama3: the piecewise rule published with Llama 3.1;
// - yarn: Peng et al. 2023, arXiv:2309.00071;
// - longrope: Ding et al. 2024, arXiv:2402.13753;
// - dynamic: the length-dependent NTK-aware base, as described by yarn's authors;
// - proportional: rotates only the first pairs, with their frequencies from rotating all pairs (Gemma 4).
// longrope and dynamic depend on rope.run_length.
RopeFrequencies rope_frequencies(const RopeConfig& rope, std::int64_t head_dim, std::int64_t max_position);

// Frequencies of the one half-split RoPE that all layers share, which lets statistics invert it. P = 0 if there is
// none:
// - layers differ (Gemma 3, SmolLM3) or pairs are interleaved (GLM-4);
// - a norm with weights follows (Hunyuan);
// - it covers no cached row, but channels beside it (latent attention).
RopeFrequencies common_rope(const ModelConfig& config);
// The longest context, in tokens, for which RoPE has the frequencies of this run; 0: any length.
std::int64_t rope_reach(const ModelConfig& config);
// InputError unless common_rope() rotates all channels. `what` names the feature that needs it: "centering before
// RoPE".
void require_full_rope(const ModelConfig& config, const std::string& what);

struct RopeTable {
  at::Tensor cos, sin;  // [T, 1, P], computed in FP32, then cast to the activation dtype; undefined: no RoPE
  bool interleaved = false;
  at::Tensor query_scale;  // [T, 1, 1] FP32, multiplies queries after RoPE; undefined: 1
};

// [T, 1, 1] FP32: QueryScale at the positions of `batch`.
at::Tensor query_scales(const QueryScale& scale, const SequenceBatch& batch, at::Device device);

RopeTable rope_table(const RopeFrequencies& frequencies, const SequenceBatch& batch, at::ScalarType dtype,
                     at::Device device);

// x [T, H, d] -> a copy with RoPE applied; x itself if the table has no rotation.
at::Tensor apply_rope(const at::Tensor& x, const RopeTable& table);

}  // namespace oscar
