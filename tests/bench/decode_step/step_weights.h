// Geometries of Qwen3 with random weights on the GPU, fused and absorbed as a decode step multiplies with them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "model/decoder.h"

namespace oscar::bench {

ModelConfig qwen3_geometry(const std::string& name);  // "8b", "4b", "tiny"; std::invalid_argument otherwise

struct StepLayer {
  LayerWeights plain;       // as in a checkpoint; q, k, v and gate, up are views of the fused ones where they can be
  at::Tensor qkv, gate_up;  // [(Hq + 2 Hkv) d, hidden], [2 intermediate, hidden]
  at::Tensor absorbed_v, absorbed_o;  // with R_V: rows of v [Hkv d, hidden], columns of o [hidden, Hq d]
  at::Tensor key_rotation;            // [1, d, d] FP32
};

struct StepWeights {
  ModelConfig config;
  at::Tensor embedding, head, final_norm;  // head is the embedding where they are tied
  std::vector<StepLayer> layers;
  at::Tensor rope_cos, rope_sin;     // [positions, d / 2] FP32
  std::uint64_t step_bytes() const;  // weights that a step reads
};

StepWeights random_weights(const ModelConfig& config, std::int64_t positions, std::uint64_t seed);
// Puts the value and output weights of one kind into what the step multiplies with.
void use_absorbed(StepWeights& weights, bool absorbed);

}  // namespace oscar::bench
