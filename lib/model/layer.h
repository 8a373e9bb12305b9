// The mathematics of one decoder layer on plain tensors, without checkpoint or state.
#pragma once

#include <ATen/core/Tensor.h>

#include "checkpoint/families/family.h"
#include "model/attention.h"
#include "model/carried_rows.h"
#include "model/decoder.h"
#include "model/rope.h"

namespace oscar {

// x / sqrt(mean(x^2) + eps) over the last dimension in FP32, then the weight as `kind` says; the result has x's dtype.
// LayerNorm does the same after subtracting the mean of x (kCentered). Without a weight, the result is only rounded.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, NormKind kind = NormKind::kRounded);

// The channel factors of a norm of this kind, FP32: `weight` or 1 + weight.
at::Tensor norm_gain(const at::Tensor& weight, NormKind kind);

// x W^T + b as `result`: x [..., in], W [out, in], b [out] or undefined. The product is computed in the type of W
// (DecoderOptions::products).
at::Tensor product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, at::ScalarType result);

// Applies the activation to an MLP gate in place.
void activate_(at::Tensor& gate, Activation activation);

// Tokens that an MLP takes at once. The two [block, intermediate] tensors are a layer's largest, but shorter blocks do
// not fill a large GPU.
inline std::int64_t mlp_tokens(at::Device device) { return device.is_cuda() ? 16'384 : 4096; }

// down(act(gate(x)) * up(x)): [T, hidden] -> [T, hidden], in blocks of tokens to limit memory.
at::Tensor gated_mlp(const at::Tensor& x, const LayerWeights& weights, Activation activation = Activation::kSilu);

// The factor of q k^T before the softmax.
double attention_scale(const ModelConfig& config);

// hidden [T, hidden] -> [T, hidden]. `table` must match the positions of `batch` and the layer.
//   a = hidden + s norm(attention(norm(hidden))),   out = c (a + s norm(mlp(norm(a)))),   s: config.residual_scale
// Only norms with weights are applied; c is the layer's scalar or 1. If the layer has a router, experts replace the
// MLP. If it also has an MLP, their outputs are added, in some families with norms around each and experts that read
// `a`.
// Pieces::parallel: out = a + s norm(mlp(norm(hidden))) with attention's norm.
// asked: undefined, or [A] int64 on the CPU, ascending: the tokens whose output is requested, [A, hidden]. The other
// tokens contribute only keys and values (or states).
// carried: for families with carried rows. If the layer has its own embedding p, c (y + norm(W (act(G y) p))) replaces
// c y above. A layer that shares another layer's keys and values reads them here; other layers store theirs.
at::Tensor decoder_layer(const ModelConfig& config, std::int64_t layer, const LayerWeights& weights,
                         const at::Tensor& hidden, const SequenceBatch& batch, const RopeTable& table,
                         Attention& attention, const Pieces& pieces = {}, const at::Tensor& asked = {},
                         CarriedRows* carried = nullptr);

}  // namespace oscar
