// Checkpoint tensors as at::Tensors: the one place where names, shapes and dtypes of weights are checked.
#pragma once

#include <ATen/core/Tensor.h>

#include "checkpoint/families/family.h"
#include "model/decoder.h"

namespace oscar {

// The tensors outside the layers, as stored. With tied embeddings `embedding` and `head` are the same tensor.
struct OuterViews {
  const TensorView* embedding;   // [vocabulary, hidden]
  const TensorView* head;        // [vocabulary, hidden]
  const TensorView* final_norm;  // [hidden]
};

// InputError: a tensor is missing, has another shape than config.json implies, is not BF16, F16, F32 or F64, or the
// checkpoint holds a weight, bias or norm that the architecture would ignore.
OuterViews find_outer_weights(const Checkpoint& checkpoint, const Family& family);
LayerWeights load_layer_weights(const Checkpoint& checkpoint, const Family& family, std::int64_t layer,
                                const DecoderOptions& options);

// The same checks without reading any data, for every layer: a bad checkpoint fails before the first forward pass.
void check_weights(const Checkpoint& checkpoint, const Family& family);

// The tensor of that name, or the errors above.
const TensorView& checked_weight(const Checkpoint& checkpoint, const std::string& name,
                                 const std::vector<std::int64_t>& shape);

// Rows `ids` of a [rows, columns] tensor, read straight from the file: [ids, columns]. Ids are in range.
at::Tensor gather_rows(const TensorView& view, const std::vector<std::int32_t>& ids, at::ScalarType dtype,
                       at::Device device);

}  // namespace oscar
