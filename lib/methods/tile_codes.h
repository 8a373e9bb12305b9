// Codes of a tile: consecutive tokens of one head. Each function replaces the tile by what a reader gets back.
#pragma once

#include <cstdint>

#include "registry/method_spec.h"

namespace oscar {

// tile: [tokens, d] floats, `stride` floats from token to token. Per-channel and Sinkhorn codes take whole tiles of
// tile_tokens(side) tokens, the others any number. is_value: KVarN treats keys and values differently.
// added: null, or room like the tile's for what the code adds to the variance of each value, as far as what is stored
// tells it:
//   levels a step apart      step^2 / 12: an error spread evenly over the step, whatever the value is (also of fp8)
//   Lloyd-Max centroids      -D |x|^2 / n, D the distortion of N(0, 1): a centroid is the mean of its cell, so that
//   rows
//                            vary less after coding than before, by what is left in the cells
//   the same of norm |x|     0: decoded rows are as long as the rows
//   eight-channel vectors    D |xhat|^2 / n: <x, xhat> = |x|^2, so that the error is orthogonal to the row; D the share
//                            of the decoded energy that is error
void code_tile(const SideCode& side, bool is_value, float* tile, std::int64_t tokens, std::int64_t d,
               std::int64_t stride, float* added = nullptr);

// Whether that is anything but 0.
bool adds_variance(const SideCode& side);

// KVarN (arXiv 2606.03458): x[t, c] = row[t] column[c] y[t, c] with y of nearly equal deviation in all rows and
// columns, found by alternating divisions in the logarithm of the scales; of 16 iterates the one with the smallest
// imbalance (largest over smallest deviation, rows plus columns). Keys then are coded per channel, values per token.
// tile and added (null, or as above): [tokens, d] contiguous.
void sinkhorn_code(float* tile, std::int64_t tokens, std::int64_t d, int bits, bool is_value, float* added = nullptr);

}  // namespace oscar
