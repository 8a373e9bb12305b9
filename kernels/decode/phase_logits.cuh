// The part of the logits that depends on the position of a key. Keys of `blocks` pages may be stored without their mean
// before RoPE. Each logit then lacks <u, c_p>, c_p = (cos(theta_f p), sin(theta_f p)) (for u see
// lib/model/rope_phases.h). The 64 tokens of a page have <u, c_(p0 + j)> = (V y)_j with y from page_queries.h, which
// was copied with the page. One table of 64 rows is the codes' operand for every page and sequence, and y is the heads'
// operand. All are FP16 with FP32 sums: as exact as keys in BF16.
#pragma once

#include <cstdint>

#include "kernels/decode/head_fragment.cuh"
#include "kernels/decode/shared_memory.cuh"
#include "kernels/decode/tile_phases.h"

namespace oscar::kernels {

// s = <u, c_p> for M tiles of 16 consecutive tokens, before the softmax scale. queries: the page queries of the item's
// heads, [gqa_group, 32]; basis: the second table of fill_tile_phases() (it stays in L1).
template <int NT, int M>
__device__ __forceinline__ void phase_logits(float (&s)[M][4 * NT], SharedAddress queries, const std::uint16_t* basis,
                                             int gqa_group, int lane) {
  using Head = HeadFragment<NT>;
  constexpr int kSteps = kPageRank / 16;
  const int g = lane >> 2, t = lane & 3;
  std::uint32_t words[kSteps][Head::kWords];  // [r][n] for each step
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    // Columns after the GQA group are not read.
    const uint4 y = load_shared_16(queries + 16 * (4 * min(8 * n + g, gqa_group - 1) + t));
    words[0][n] = y.x, words[0][NT + n] = y.y, words[1][n] = y.z, words[1][NT + n] = y.w;
  }
  const uint4* rows = reinterpret_cast<const uint4*>(basis) + lane;
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int k = 0; k < Head::kSize; ++k) s[m][k] = 0.0f;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const uint4 row = __ldg(rows + 32 * (m * kSteps + i));
      const std::uint32_t operand[4] = {row.x, row.y, row.z, row.w};
      Head::mma(s[m], operand, words[i]);
    }
  }
}

}  // namespace oscar::kernels
