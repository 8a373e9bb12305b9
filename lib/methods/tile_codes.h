// Codes of a tile: consecutive tokens of one head. Each function replaces the tile by what a reader gets back.
#pragma once

#include <cstdint>

#include "registry/method_spec.h"

namespace oscar {

// tile: [tokens, d] floats, `stride` floats from token to token. Per-channel codes take whole tiles of
// tile_tokens(side) tokens, the others any number.
void code_tile(const SideCode& side, float* tile, std::int64_t tokens, std::int64_t d, std::int64_t stride);

}  // namespace oscar
