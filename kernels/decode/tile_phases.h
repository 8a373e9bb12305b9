// The two tables by which decode attention adds <u, c_p> to the logits (page_queries.h, phase_logits.cuh).
//
// The phases of the 64 tokens of a page are c_j, j < 64, rotated by the page's first position. So C = [c_0 ... c_63],
// [64, D], serves every page. Its columns are cosines and sines of at most one radian per token. 64 samples of such
// functions span 21 directions, except for a tail that falls faster than exponentially. So C = V P within 1e-7, with an
// orthonormal basis V [64, 32] and the projection P = V^T C [32, D], for every known head size and base of RoPE (2e-6
// with 512 turning channels and base 1e4, which no known model has).
//
// Keys of real models have means of up to 354 before RoPE, and their logits differ by tens of thousands between
// positions. One FP16 number would overflow at <u, c_p> above 1.3e5 and round to several nats below. So each factor is
// two FP16 terms, x = high + low with low the rounded remainder, and products leave out only low times low.
#pragma once

#include <cstdint>

#include "kernels/common/fragment_pages.h"

namespace oscar::kernels {

inline constexpr int kPageRank = 32;  // columns of V

// FP16 cannot hold a large query, so the basis is larger by a power of two and the query smaller: <u, c_p> may be 2e6.
inline constexpr float kPhaseUnit = 256.0f, kQueryUnit = 1.0f / kPhaseUnit;

// Number of FP16 values in the tables: the projection and the basis, first both high terms, then both low terms.
constexpr int projection_count(int head_dim) { return kPageRank * head_dim; }
constexpr int phase_term_count(int head_dim) { return projection_count(head_dim) + kPageTokens * kPageRank; }
constexpr int tile_phases_count(int head_dim) { return 2 * phase_term_count(head_dim); }

// The column of V that is element k of the heads' operand in phase_logits(). Page queries are stored in the order in
// which the tensor cores leave them, four rows 8 apart per lane.
constexpr int page_direction(int k) { return 2 * (k % 8 / 2) + k / 16 + 8 * (2 * (k / 8 % 2) + k % 2); }

// tables: FP16 bits on the host, each as operand A of the tensor cores, [tiles of 16 rows, steps of 16 columns, 32
// lanes, 8]. Projection: rows are the 32 directions. Channel steps 2 s and 2 s + 1 hold the pairs 16 s + 4 t + {0, 1}
// and + {2, 3} of a lane with t = lane % 4, each as adjacent cosine and sine. A lane then reads its phases and its
// query as vectors of four. Basis: rows are the 64 tokens. frequencies: [D / 2], at most one radian per token
// (kMostFrequency). Returns the largest error of V P as an approximation of C before rounding.
inline constexpr float kMostFrequency = 1.0f;
float fill_tile_phases(int head_dim, const float* frequencies, std::uint16_t* tables);

}  // namespace oscar::kernels
