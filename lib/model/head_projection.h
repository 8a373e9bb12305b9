// Queries, keys and values of a layer as attention sees them.
#pragma once

#include <ATen/core/Tensor.h>

#include "checkpoint/families/family.h"
#include "model/attention.h"
#include "model/decoder.h"
#include "model/rope.h"

namespace oscar {

// x, or the rows of it that are wanted: rows undefined (all) or [A] int64 on the device of x; x may be undefined.
at::Tensor wanted(const at::Tensor& x, const at::Tensor& rows);

// x [T, hidden] after the layer's norm -> q [A, Hq, d], k and v [T, Hkv, d] of `input`, with the sizes that heads have
// in this layer: projections with their biases, norms of heads, RoPE (`table` belongs to the layer and to the
// positions), and the scale of queries by position. Where the layer projects no values, v is the projection of k
// before norm and RoPE (ModelConfig::keys_as_values).
// rows: undefined, or [A] int64 on the device of x: the tokens that ask.
void project_heads(const ModelConfig& config, std::int64_t layer, const LayerWeights& weights, const Pieces& pieces,
                   const at::Tensor& x, const at::Tensor& rows, const RopeTable& table, AttentionInput& input);

}  // namespace oscar
