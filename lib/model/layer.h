// The mathematics of one decoder layer, on plain tensors: no checkpoint, no state.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/attention.h"
#include "model/decoder.h"
#include "model/rope.h"

namespace oscar {

// x / sqrt(mean(x^2) + eps) over the last dimension in FP32, cast to x's dtype, times weight.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

// down(silu(gate(x)) * up(x)): [T, hidden] -> [T, hidden], in blocks of tokens so that memory stays bounded.
at::Tensor gated_mlp(const at::Tensor& x, const LayerWeights& weights);

// What q k^T is multiplied by before the softmax.
double attention_scale(const ModelConfig& config);

// hidden [T, hidden] -> [T, hidden]. `table` belongs to the positions of `batch`.
at::Tensor decoder_layer(const ModelConfig& config, std::int64_t layer, const LayerWeights& weights,
                         const at::Tensor& hidden, const SequenceBatch& batch, const RopeTable& table,
                         Attention& attention);

}  // namespace oscar
