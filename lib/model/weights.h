// Checkpoint tensors as at::Tensors: the one place where names, shapes and dtypes of weights are checked.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/decoder.h"
#include "model/families/family.h"

namespace oscar {

// Everything outside the layers.
struct OuterWeights {
  at::Tensor embedding;   // [vocabulary, hidden]
  at::Tensor final_norm;  // [hidden]
  at::Tensor head;        // [vocabulary, hidden]; the same tensor as `embedding` when tied
};

// InputError: a tensor is missing, has another shape than config.json implies, is not BF16, F16, F32 or F64, or the
// checkpoint holds a bias or norm that the architecture would ignore.
OuterWeights load_outer_weights(const Checkpoint& checkpoint, const Family& family, const DecoderOptions& options);
LayerWeights load_layer_weights(const Checkpoint& checkpoint, const Family& family, std::int64_t layer,
                                const DecoderOptions& options);

// The same checks without reading any data, for every layer: a bad checkpoint fails before the first forward pass.
void check_weights(const Checkpoint& checkpoint, const Family& family);

}  // namespace oscar
