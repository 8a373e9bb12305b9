// Sides that are made without data, or for given widths.
#pragma once

#include <cstdint>

#include "transform/profile_allocation.h"
#include "transform/transform.h"

namespace oscar {

// Transforms without data, as baselines use them.

// [1, d, d] F32, with eigenvalues 1 as published.
SideTransform identity_side(std::int64_t head_dim);
SideTransform hadamard_side(std::int64_t head_dim);

// The transform of values that are the rows of the keys (latent attention): x' = x forward for both, o = o'
// query_side^T + mean.
SideTransform as_value_side(const SideTransform& key);

// Widths of the blocks of a side, with the deviations to which their scale bytes are relative.

// Sets `widths` and `sigma` [Hkv, 4] of a transform with blocks of variance 1, the form that fits produce.
void set_block_widths(SideTransform& side, const Widths& widths, std::int64_t kv_heads);

// Both sides of a layer.
void set_block_widths(LayerTransform& layer, const Widths& key, const Widths& value);

}  // namespace oscar
