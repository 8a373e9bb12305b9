// Converts checkpoint tensors to at::Tensors. Names, shapes and dtypes of weights are checked only here.
#pragma once

#include <ATen/core/Tensor.h>

#include "checkpoint/families/family.h"
#include "model/decoder.h"
#include "weights/stored_weight.h"

namespace oscar {

// The tensors outside the layers, as stored.
struct OuterViews {
  const TensorView* embedding;  // [vocabulary, hidden]
  StoredWeight head;            // [vocabulary, hidden]; a separate tensor, or the embedding's
  StoredWeight final_norm;      // [hidden]
  // Layer embeddings, if the model has them: [vocabulary, L P], [L P, hidden], [P].
  const TensorView* layer_embedding = nullptr;
  StoredWeight layer_projection, layer_projection_norm;
};

// InputError as in find_weight() and load_weight(). Also for a quantized embedding, because its rows are read one by
// one, and for a checkpoint with a weight, bias or norm that the architecture would ignore.
OuterViews find_outer_weights(const Checkpoint& checkpoint, const Family& family);
LayerWeights load_layer_weights(const Checkpoint& checkpoint, const Family& family, std::int64_t layer,
                                const DecoderOptions& options);

// Does the same checks for every layer without reading data. A bad checkpoint thus fails before the first forward pass.
void check_weights(const Checkpoint& checkpoint, const Family& family);

// Checks only names, for a checkpoint whose shards are absent. InputError for a name that the index lacks.
void check_weight_names(const Checkpoint& checkpoint);

// Elements of each layer's weights when dequantized, independent of their size in the file: [layers].
std::vector<std::uint64_t> layer_elements(const Checkpoint& checkpoint);
// Extra bytes needed to dequantize the largest stored weight of a layer, beside its result. On a GPU this is the size
// of its stored tensors. 0 if no weight is quantized.
std::uint64_t dequantization_bytes(const Checkpoint& checkpoint, at::Device device);
// Bytes of all weights at `width` bytes per number: layers, embedding, head unless it is tied to the embedding, final
// norm.
std::uint64_t decoded_bytes(const Checkpoint& checkpoint, std::uint64_t width);

}  // namespace oscar
