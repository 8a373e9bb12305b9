// Latent attention (MLA; DeepSeek-V2, arXiv:2405.04434, section 2.1.3) in absorbed form. With the latent c = norm(x
// W_DKV) and the RoPE channels k_R, which all heads share:
//   score = (q_nope W_UK) c + q_R k_R,   output = W_O W_UV (p c).
// A layer is thus attention with one KV head: keys and values [c, k_R], queries [q_nope W_UK, q_R]. The output does not
// use the RoPE channels of the values.
#pragma once

#include <ATen/core/Tensor.h>

#include "checkpoint/families/family.h"
#include "model/attention.h"
#include "model/decoder.h"
#include "model/rope.h"

namespace oscar {

// Fills in q [T, Hq, r+R], k and v [T, 1, r+R] of `input` from the normed layer input x [T, hidden].
void project_latent(const ModelConfig& config, const LayerWeights& weights, const Pieces& pieces, const at::Tensor& x,
                    const RopeTable& table, AttentionInput& input);

// Attention outputs [T, Hq, r+R] -> the input of W_O, [T, Hq v].
at::Tensor expanded_outputs(const ModelConfig& config, const LayerWeights& weights, const at::Tensor& output);

// The input of W_O per head. Attention outputs [T, Hq, d] are returned unchanged; with latent attention their values
// [T, Hq, v].
at::Tensor read_outputs(const ModelConfig& config, const LayerWeights& weights, const at::Tensor& output);

// W_O in the coordinates of attention outputs, [hidden, Hq d]. With latent attention this is W_O W_UV, with 0 in the
// columns of the RoPE channels; otherwise `weights.o`.
at::Tensor output_weight(const ModelConfig& config, const LayerWeights& weights);

}  // namespace oscar
