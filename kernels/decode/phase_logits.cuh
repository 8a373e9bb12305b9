// The part of the logits that depends on the position of a key. Keys of `blocks` pages may be stored without their mean
// before RoPE. Each logit then lacks <u, c_p>, c_p = (cos(theta_f p), sin(theta_f p)) (for u see
// lib/model/rope_phases.h). The 64 tokens of a page have <u, c_(p0 + j)> = (V y)_j with y from page_queries.h, which
// was copied with the page. One table of 64 rows is the codes' operand for every page and sequence, and y is the heads'
// operand. All are two terms of FP16
// with FP32 sums (tile_phases.h).
#pragma once

#include <cstdint>

#include "kernels/decode/head_fragment.cuh"
#include "kernels/decode/page_queries.h"
#include "kernels/decode/shared_memory.cuh"
#include "kernels/decode/tile_phases.h"

namespace oscar::kernels {

// s = <u, c_p> for M tiles of 16 consecutive tokens, before the softmax scale. queries: the page queries of the item's
// heads, [gqa_group][2 terms, 32]; basis: the high terms of fill_tile_phases()'s second table, `to_low` vectors of 8
// before the low ones (they stay in L1).
template <int NT, int M>
__device__ __forceinline__ void phase_logits(float (&s)[M][4 * NT], SharedAddress queries, const std::uint16_t* basis,
                                             int to_low, int gqa_group, int lane) {
  using Head = HeadFragment<NT>;
  constexpr int kSteps = kPageRank / 16;
  const int g = lane >> 2, t = lane & 3;
  std::uint32_t words[2][kSteps][Head::kWords];  // [term][step][r][n]
#pragma unroll
  for (int term = 0; term < 2; ++term)
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      // Columns after the GQA group are not read.
      const uint4 y =
          load_shared_16(queries + kPageQueryBytes * min(8 * n + g, gqa_group - 1) + kPageTermBytes * term + 16 * t);
      words[term][0][n] = y.x, words[term][0][NT + n] = y.y;
      words[term][1][n] = y.z, words[term][1][NT + n] = y.w;
    }
  const uint4* rows = reinterpret_cast<const uint4*>(basis) + lane;
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int k = 0; k < Head::kSize; ++k) s[m][k] = 0.0f;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const uint4 row = __ldg(rows + 32 * (m * kSteps + i)), rest = __ldg(rows + to_low + 32 * (m * kSteps + i));
      const std::uint32_t high[4] = {row.x, row.y, row.z, row.w}, low[4] = {rest.x, rest.y, rest.z, rest.w};
      Head::mma(s[m], low, words[0][i]);
      Head::mma(s[m], high, words[1][i]);
      Head::mma(s[m], high, words[0][i]);
    }
  }
}

}  // namespace oscar::kernels
