// Checkpoint tensors as at::Tensors: the one place where names, shapes and dtypes of weights are checked.
#pragma once

#include <ATen/core/Tensor.h>

#include "checkpoint/families/family.h"
#include "model/decoder.h"
#include "weights/stored_weight.h"

namespace oscar {

// The tensors outside the layers, as stored.
struct OuterViews {
  const TensorView* embedding;  // [vocabulary, hidden]
  StoredWeight head;            // [vocabulary, hidden]; the embedding's tensor or another one
  StoredWeight final_norm;      // [hidden]
  // Embeddings of layers, where the model has them: [vocabulary, L P], [L P, hidden], [P].
  const TensorView* layer_embedding = nullptr;
  StoredWeight layer_projection, layer_projection_norm;
};

// InputError as find_weight() and load_weight(), for an embedding that is quantized (its rows are read one by one), or
// for a checkpoint with a weight, bias or norm that the architecture would ignore.
OuterViews find_outer_weights(const Checkpoint& checkpoint, const Family& family);
LayerWeights load_layer_weights(const Checkpoint& checkpoint, const Family& family, std::int64_t layer,
                                const DecoderOptions& options);

// The same checks without reading any data, for every layer: a bad checkpoint fails before the first forward pass.
void check_weights(const Checkpoint& checkpoint, const Family& family);

// The same of names alone, for a checkpoint whose shards are absent: InputError for one that the index lacks.
void check_weight_names(const Checkpoint& checkpoint);

// Elements of each layer's weights as they are computed with, whatever they take in the file: [layers].
std::vector<std::uint64_t> layer_elements(const Checkpoint& checkpoint);
// Bytes that dequantizing the largest stored weight of a layer takes beside its result, on a GPU those of its tensors;
// 0 where none is quantized.
std::uint64_t dequantization_bytes(const Checkpoint& checkpoint, at::Device device);
// Bytes of all weights in numbers of `width` bytes: layers, embedding where the head is tied to it or not, final norm.
std::uint64_t decoded_bytes(const Checkpoint& checkpoint, std::uint64_t width);

}  // namespace oscar
