// The mathematics of one decoder layer, on plain tensors: no checkpoint, no state.
#pragma once

#include <ATen/core/Tensor.h>

#include "checkpoint/families/family.h"
#include "model/attention.h"
#include "model/carried_rows.h"
#include "model/decoder.h"
#include "model/rope.h"

namespace oscar {

// x / sqrt(mean(x^2) + eps) over the last dimension in FP32, then the weight as `kind` says; x's dtype. LayerNorm is
// the same of x less its mean (kCentered). Without a weight, rounded as it is.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, NormKind kind = NormKind::kRounded);

// What a norm of this kind multiplies its channels by, FP32: `weight`, or 1 + weight.
at::Tensor norm_gain(const at::Tensor& weight, NormKind kind);

// In place, on the gate of an MLP.
void activate_(at::Tensor& gate, Activation activation);

// down(act(gate(x)) * up(x)): [T, hidden] -> [T, hidden], in blocks of tokens so that memory stays bounded.
at::Tensor gated_mlp(const at::Tensor& x, const LayerWeights& weights, Activation activation = Activation::kSilu);

// What q k^T is multiplied by before the softmax.
double attention_scale(const ModelConfig& config);

// hidden [T, hidden] -> [T, hidden]. `table` belongs to the positions of `batch` and to the layer.
//   a = hidden + s norm(attention(norm(hidden))),   out = c (a + s norm(mlp(norm(a)))),   s: config.residual_scale
// with the norms for which the layer has weights, and experts instead of the MLP where it has a router (with the MLP
// added where it has that too, or with norms around each and experts that read `a`), and c the layer's scalar or 1.
// Pieces::parallel: out = a + s norm(mlp(norm(hidden))) with attention's norm.
// asked: undefined, or [A] int64 on the CPU, ascending: the tokens that are wanted of the layer, [A, hidden]. The
// others give keys and values (or states) alone.
// carried: of families that have such rows. Where the layer has an embedding p of its own, c (y + norm(W (act(G y) p)))
// takes the place of c y above; a layer that reads another's keys and values finds them there, others leave their own.
at::Tensor decoder_layer(const ModelConfig& config, std::int64_t layer, const LayerWeights& weights,
                         const at::Tensor& hidden, const SequenceBatch& batch, const RopeTable& table,
                         Attention& attention, const Pieces& pieces = {}, const at::Tensor& asked = {},
                         CarriedRows* carried = nullptr);

}  // namespace oscar
