// Projects a layer's input to queries, keys and values for attention.
#pragma once

#include <ATen/core/Tensor.h>

#include "checkpoint/families/family.h"
#include "model/attention.h"
#include "model/decoder.h"
#include "model/rope.h"

namespace oscar {

// Selects the requested rows of x. rows: undefined (all) or [A] int64 on the device of x. x may be undefined.
at::Tensor wanted(const at::Tensor& x, const at::Tensor& rows);

// x [T, hidden] after the layer's norm -> q [A, Hq, d], k and v [T, Hkv, d] of `input`, with the head sizes of this
// layer. Applies projections with biases, head norms, RoPE and the position scale of queries. `table` must match the
// layer and the positions. If the layer does not project values, v is the projection of k before norm and RoPE
// (ModelConfig::keys_as_values).
// rows: undefined, or [A] int64 on the device of x: the tokens that need queries.
void project_heads(const ModelConfig& config, std::int64_t layer, const LayerWeights& weights, const Pieces& pieces,
                   const at::Tensor& x, const at::Tensor& rows, const RopeTable& table, AttentionInput& input);

}  // namespace oscar
