// Codes of a tile: consecutive tokens of one head. Each function replaces the tile by what a reader gets back.
#pragma once

#include <cstdint>

#include "registry/method_spec.h"

namespace oscar {

// tile: [tokens, d] floats, `stride` floats from token to token. Per-channel and Sinkhorn codes take whole tiles of
// tile_tokens(side) tokens, the others any number. is_value: KVarN treats keys and values differently.
void code_tile(const SideCode& side, bool is_value, float* tile, std::int64_t tokens, std::int64_t d,
               std::int64_t stride);

// KVarN (arXiv 2606.03458): x[t, c] = row[t] column[c] y[t, c] with y of nearly equal deviation in all rows and
// columns, found by alternating divisions in the logarithm of the scales; of 16 iterates the one with the smallest
// imbalance (largest over smallest deviation, rows plus columns). Keys then are coded per channel, values per token.
// tile: [tokens, d] contiguous.
void sinkhorn_code(float* tile, std::int64_t tokens, std::int64_t d, int bits, bool is_value);

}  // namespace oscar
