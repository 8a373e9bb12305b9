// Values that some families pass from layer to layer in the same row as the hidden state (ModelConfig::state_width()).
// Code that stores or streams states can ignore this layout:
//   [hidden state | embeddings of all layers | keys, values of each layer that others read]
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "checkpoint/model_config.h"

namespace oscar {

// The part of a row that one layer uses. L: layers, P: ModelConfig::layer_input.
struct CarriedRows {
  at::Tensor layer_input;  // [T, P]; undefined if layers have no embeddings
  // [T, Hkv, d]: keys and values that the layer reads from another layer or, after the layer has run, provides to
  // others.
  at::Tensor k, v;
};

// The hidden states of rows [T, state_width]. Rows [T, hidden] are returned unchanged.
at::Tensor hidden_of(const ModelConfig& config, const at::Tensor& rows);
// Rows before the first layer, from the hidden state [T, hidden] and the embeddings of all layers [T, L P].
at::Tensor first_rows(const ModelConfig& config, const at::Tensor& hidden, const at::Tensor& layer_inputs);
CarriedRows carried_rows(const ModelConfig& config, std::int64_t layer, const at::Tensor& rows);
// Rows after a layer: its hidden states [T, hidden], its carried values, and the rest of `rows`.
at::Tensor next_rows(const ModelConfig& config, std::int64_t layer, const at::Tensor& rows, const at::Tensor& hidden,
                     const CarriedRows& carried);

// Embeddings of each layer, (norm(x W^T / sqrt(hidden)) + e) / sqrt(2): [T, L P].
// x [T, hidden]: the model's embeddings, as the first layer reads them. e [T, L P]: the scaled layer embeddings.
// projection W [L P, hidden], norm [P].
at::Tensor layer_inputs(const ModelConfig& config, const at::Tensor& x, const at::Tensor& e,
                        const at::Tensor& projection, const at::Tensor& norm);

}  // namespace oscar
