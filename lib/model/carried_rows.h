// What some families hand from layer to layer beside the hidden state of a token, in the same row (ModelConfig::
// state_width()), so that whoever keeps or streams states needs to know nothing of it:
//   [hidden state | embeddings of all layers | keys, values of each layer that others read]
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "checkpoint/model_config.h"

namespace oscar {

// What one layer has of it. L: layers, P: ModelConfig::layer_input.
struct CarriedRows {
  at::Tensor layer_input;  // [T, P]; undefined where layers have no embeddings
  // [T, Hkv, d]: what the layer reads of another one, or, when it is done, what others read of it.
  at::Tensor k, v;
};

// The hidden states of rows [T, state_width], or of [T, hidden] themselves.
at::Tensor hidden_of(const ModelConfig& config, const at::Tensor& rows);
// Rows of the hidden state [T, hidden] and the embeddings of all layers [T, L P], before any layer has run.
at::Tensor first_rows(const ModelConfig& config, const at::Tensor& hidden, const at::Tensor& layer_inputs);
CarriedRows carried_rows(const ModelConfig& config, std::int64_t layer, const at::Tensor& rows);
// Rows behind a layer: its hidden states [T, hidden], what it carried, and the rest of `rows`.
at::Tensor next_rows(const ModelConfig& config, std::int64_t layer, const at::Tensor& rows, const at::Tensor& hidden,
                     const CarriedRows& carried);

// (norm(x W^T / sqrt(hidden)) + e) / sqrt(2) of each layer, [T, L P]: x [T, hidden] the model's own embeddings, as the
// first layer reads them, e [T, L P] those of the layers, scaled; projection [L P, hidden], norm [P].
at::Tensor layer_inputs(const ModelConfig& config, const at::Tensor& x, const at::Tensor& e,
                        const at::Tensor& projection, const at::Tensor& norm);

}  // namespace oscar
