// Latent attention (MLA; DeepSeek-V2, arXiv:2405.04434, section 2.1.3) in absorbed form. With the latent c = norm(x
// W_DKV) and the RoPE channels k_R, which all heads share:
//   score = (q_nope W_UK) c + q_R k_R,   output = W_O W_UV (p c).
// A layer is thus attention with one KV head: key and value are c, the query is q_nope W_UK, and q_R k_R joins the
// logits (AttentionInput::q_rope).
#pragma once

#include <ATen/core/Tensor.h>

#include "checkpoint/families/family.h"
#include "model/attention.h"
#include "model/decoder.h"
#include "model/rope.h"

namespace oscar {

// Fills in q [T, Hq, r], k and v [T, 1, r], q_rope [T, Hq, R] and k_rope [T, 1, R] of `input` from the normed layer
// input x [T, hidden].
void project_latent(const ModelConfig& config, const LayerWeights& weights, const Pieces& pieces, const at::Tensor& x,
                    const RopeTable& table, AttentionInput& input);

// The input of W_O per head. Attention outputs [T, Hq, d] are returned unchanged; with latent attention their values
// [T, Hq, v].
at::Tensor read_outputs(const ModelConfig& config, const LayerWeights& weights, const at::Tensor& output);

// W_O in the coordinates of attention outputs, [hidden, Hq d]. With latent attention this is W_O W_UV in FP32;
// otherwise `weights.o`.
at::Tensor output_weight(const ModelConfig& config, const LayerWeights& weights);

}  // namespace oscar
