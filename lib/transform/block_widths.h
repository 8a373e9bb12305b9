// Widths of the blocks of a side, with the deviations to which their scale bytes are relative.
#pragma once

#include "transform/profile_allocation.h"
#include "transform/transform.h"

namespace oscar {

// Sets `widths` and `sigma` [Hkv, 4] of a transform with blocks of variance 1, the form that fits produce.
void set_block_widths(SideTransform& side, const Widths& widths, std::int64_t kv_heads);

// Both sides of a layer.
void set_block_widths(LayerTransform& layer, const Widths& key, const Widths& value);

}  // namespace oscar
