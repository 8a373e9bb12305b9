// Codes of a tile: consecutive tokens of one head. The function replaces the tile by its decoded values.
#pragma once

#include <cstdint>

#include "registry/method_spec.h"

namespace oscar {

// tile: [tokens, d] floats, `stride` floats from token to token. Per-channel codes need full tiles of tile_tokens(side)
// tokens; other codes take any number.
void code_tile(const SideCode& side, float* tile, std::int64_t tokens, std::int64_t d, std::int64_t stride);

}  // namespace oscar
