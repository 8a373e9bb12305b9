// Codes of a tile: consecutive tokens of one head. The function replaces the tile by its decoded values.
#pragma once

#include <cstdint>
#include <vector>

#include "registry/method_spec.h"

namespace oscar {

// tile: [tokens, d] floats, `stride` floats from token to token. Per-channel codes need full tiles of tile_tokens(side)
// tokens; other codes take any number.
void code_tile(const SideCode& side, float* tile, std::int64_t tokens, std::int64_t d, std::int64_t stride);

// The Lloyd-Max quantizer of N(0, 1) (Max 1960, Lloyd 1982), and its use by TurboQuant (arXiv 2504.19874).

// 2^bits centroids in ascending order, the fixed point of Lloyd's iteration for N(0, 1). bits: 1 to 8.
const std::vector<double>& lloyd_max_centroids(int bits);

// Replaces n coordinates of a rotated row by decoded ones: norm in FP16, x / norm sqrt(n) to the nearest centroid, and
// back.
void lloyd_max_code(float* x, std::int64_t n, int bits);

}  // namespace oscar
