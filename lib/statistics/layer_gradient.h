// Backward pass of one decoder layer on packed sequences. The layer's own code runs once more under autograd with its
// graph cut at the attention, whose gradient is written out (attention_gradient.h); so a layer's graph holds nothing of
// size [T, T], and families differ here no more than in the forward pass.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/decoder.h"
#include "statistics/attention_gradient.h"

namespace oscar {

struct LayerGradient {
  at::Tensor hidden;        // [T, hidden] FP32: dL/d of the layer's input, where asked for
  at::Tensor far_k, far_v;  // [T, Hkv, d] FP32: dL/d of keys (after RoPE) and values, through far pairs
  at::Tensor k, v;          // the same through all pairs
  // Where asked for, through all pairs: dL/dW_K and dL/dW_V, [Hkv d, hidden] FP32; where keys serve as values, that of
  // their one weight twice.
  at::Tensor weight_k, weight_v;
};

// What is wanted beside the gradients of keys and values. Nothing reads that of the first layer's input.
struct GradientRequest {
  bool hidden = true;
  bool weights = false;  // of W_K and W_V
  at::Tensor output{};   // [T, Hq, d] of the layer's attention, where it is known; undefined: it is computed again
};

// hidden [T, hidden]: the layer's input, of sequences from position 0. gradient [T, hidden]: dL/d of its output, of
// any float type. In a layer without a KV cache only `hidden` is found. Not under InferenceMode, and the decoder's
// weights were not loaded under it.
LayerGradient layer_gradient(Decoder& decoder, std::int64_t layer, const at::Tensor& hidden, const SequenceBatch& batch,
                             const at::Tensor& gradient, const FarPairs& pairs, const GradientRequest& request = {});

}  // namespace oscar
