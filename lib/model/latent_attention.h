// Latent attention (MLA; DeepSeek-V2, arXiv:2405.04434, section 2.1.3) in absorbed form: with the latent
// c = norm(x W_DKV) and the rotated channels k_R, which all heads share,
//   score = (q_nope W_UK) c + q_R k_R,   output = W_O W_UV (p c),
// so that a layer is attention with one KV head: keys and values [c, k_R], queries [q_nope W_UK, q_R];
// what values add up in the rotated channels is not read.
#pragma once

#include <ATen/core/Tensor.h>

#include "checkpoint/families/family.h"
#include "model/attention.h"
#include "model/decoder.h"
#include "model/rope.h"

namespace oscar {

// Fills in q [T, Hq, r+R], k and v [T, 1, r+R] of `input` from what the layer's norm gives, x [T, hidden].
void project_latent(const ModelConfig& config, const LayerWeights& weights, const Pieces& pieces, const at::Tensor& x,
                    const RopeTable& table, AttentionInput& input);

// Outputs of attention [T, Hq, r+R] -> what W_O reads, [T, Hq v].
at::Tensor expanded_outputs(const ModelConfig& config, const LayerWeights& weights, const at::Tensor& output);

// What W_O reads by head: outputs of attention [T, Hq, d] as they are, with latent attention their values [T, Hq, v].
at::Tensor read_outputs(const ModelConfig& config, const LayerWeights& weights, const at::Tensor& output);

// W_O in the coordinates of attention's outputs, [hidden, Hq d]: with latent attention W_O W_UV, whose columns for the
// rotated channels are 0; otherwise `weights.o`.
at::Tensor output_weight(const ModelConfig& config, const LayerWeights& weights);

}  // namespace oscar
