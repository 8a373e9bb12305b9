// A warp handles eight query heads at once, since all heads share the position. The attention kernel's warps have only
// the heads of one KV head.
#include "kernels/decode/page_queries.h"

#include <cuda_fp16.h>

#include <algorithm>
#include <climits>

#include "kernels/common/launch_kernel.cuh"
#include "kernels/decode/mma.cuh"
#include "kernels/decode/schedule.cuh"

namespace oscar::kernels {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps, kBlocksPerSm = 2;  // with three, registers are spilled

// cos and sin of a position for a lane's pairs: 16 s + 4 t + {0, 1, 2, 3}. They are read ahead if registers suffice.
struct Phases {
  float4 cosine, sine;
};
template <int D>
struct PhaseRow {
  static constexpr bool kAhead = D <= 256;
  const float4* from;
  Phases held[kAhead ? D / 32 : 1];

  __device__ __forceinline__ void load(const float4* row) {
    from = row;
    if constexpr (kAhead) {
#pragma unroll
      for (int s = 0; s < D / 32; ++s) held[s] = read(s);
    }
  }
  __device__ __forceinline__ Phases of(int s) const { return kAhead ? held[kAhead ? s : 0] : read(s); }

 private:
  __device__ __forceinline__ Phases read(int s) const { return {__ldg(from + 4 * s), __ldg(from + 4 * s + D / 8)}; }
};

// Two FP32 numbers as two terms of FP16 pairs.
struct TwoTerms {
  std::uint32_t high, low;

  __device__ __forceinline__ static TwoTerms of(float x, float y) {
    const std::uint32_t high = pack_f16(x, y);
    const float2 rounded = __half22float2(*reinterpret_cast<const __half2*>(&high));
    return {high, pack_f16(x - rounded.x, y - rounded.y)};
  }
};

// The heads' operand rotated to a position: words of a lane's channels 4 s + {0, 1, 2, 3} and of their other halves.
__device__ __forceinline__ void apply_rope(TwoTerms (&words)[4], const float4& u, const float4& w, const float4& cosine,
                                           const float4& sine) {
  const auto rotated = [](float x, float z, float c, float s) { return TwoTerms::of(x * c + z * s, z * c - x * s); };
  words[0] = rotated(u.x, w.x, cosine.x, sine.x), words[1] = rotated(u.y, w.y, cosine.y, sine.y);
  words[2] = rotated(u.z, w.z, cosine.z, sine.z), words[3] = rotated(u.w, w.w, cosine.w, sine.w);
}

__device__ __forceinline__ float4 times(float factor, const float4& x) {
  return {factor * x.x, factor * x.y, factor * x.z, factor * x.w};
}

__device__ __forceinline__ float4 four_bf16(const std::uint16_t* from) {
  const uint2 bits = __ldg(reinterpret_cast<const uint2*>(from));
  return {__uint_as_float(bits.x << 16), __uint_as_float(bits.x & 0xffff0000u), __uint_as_float(bits.y << 16),
          __uint_as_float(bits.y & 0xffff0000u)};
}

__device__ __forceinline__ float4 sum_of_products(const float4& a, const float4& b, const float4& c, const float4& d) {
  return {a.x * b.x + c.x * d.x, a.y * b.y + c.y * d.y, a.z * b.z + c.z * d.z, a.w * b.w + c.w * d.w};
}

// u(q) of a head: channels 16 s + 4 t + {0, 1, 2, 3} in u, and of the other half in w.
template <int D>
__device__ __forceinline__ void load_operand(const PagedDecodeParams& p, int sequence, int head, int t,
                                             float4 (&u)[D / 32], float4 (&w)[D / 32]) {
  if (p.model_query == nullptr) {
    const float4* from = reinterpret_cast<const float4*>(p.position_query) +
                         (static_cast<long long>(sequence) * p.query_heads + head) * (D / 4) + t;
#pragma unroll
    for (int s = 0; s < D / 32; ++s) u[s] = __ldg(from + 4 * s), w[s] = __ldg(from + 4 * s + D / 8);
    return;
  }
  const std::uint16_t* q =
      static_cast<const std::uint16_t*>(p.model_query) + sequence * p.model_query_stride + head * D + 4 * t;
  const float4* mean = reinterpret_cast<const float4*>(p.key_mean) + head / (p.query_heads / p.kv_heads) * (D / 4) + t;
#pragma unroll
  for (int s = 0; s < D / 32; ++s) {
    const float4 first = four_bf16(q + 16 * s), second = four_bf16(q + 16 * s + D / 2);
    const float4 m = __ldg(mean + 4 * s), n = __ldg(mean + 4 * s + D / 8);
    u[s] = sum_of_products(first, m, second, n);
    w[s] = sum_of_products(second, m, times(-1.0f, first), n);
  }
}

// y += projection times rotated heads; y: [tile of directions]. rows_of(m, k, low): a term of the projection's operand
// of tile m, step k.
template <int D, class RowsOf>
__device__ __forceinline__ void project_rotated(float (&y)[2][4], const float4 (&u)[D / 32], const float4 (&w)[D / 32],
                                                const PhaseRow<D>& c, const RowsOf& rows_of) {
#pragma unroll
  for (int s = 0; s < D / 32; ++s) {
    TwoTerms words[4];
    const Phases phases = c.of(s);
    apply_rope(words, u[s], w[s], phases.cosine, phases.sine);
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const uint4 rows = rows_of(m, 2 * s + i, false), rest = rows_of(m, 2 * s + i, true);
        const std::uint32_t high[4] = {rows.x, rows.y, rows.z, rows.w}, low[4] = {rest.x, rest.y, rest.z, rest.w};
        mma_f16(y[m], low, words[2 * i].high, words[2 * i + 1].high);
        mma_f16(y[m], high, words[2 * i].low, words[2 * i + 1].low);
        mma_f16(y[m], high, words[2 * i].high, words[2 * i + 1].high);
      }
  }
}

__device__ __forceinline__ SequencePlan plan_of(const PagedDecodeParams& p, int sequence) {
  return SequencePlan::make(p, __ldg(p.lengths + sequence));
}

// Page queries of a sequence.
__device__ __forceinline__ int count_of(const SequencePlan& plan) {
  return plan.page_end - plan.page_begin + plan.window_groups();
}

// Of a sequence much longer than others, its own blocks write a share and all blocks the rest. The usual step must not
// pay for it, since its whole time counts: few instructions, and no length of another sequence is awaited before work.
constexpr int kOwnPerWarp = 8;  // page queries for which another sequence's operand is not worth loading

__device__ __forceinline__ int own_warps() { return kWarps * static_cast<int>(gridDim.x); }

// Whether a sequence may have more than kOwnPerWarp page queries for each of its own warps, by its tokens; at most four
// are beside whole pages, at the windows' ends.
__device__ __forceinline__ bool some_longer(const PagedDecodeParams& p) {
  int longest = 0;
#pragma unroll 1
  for (int sequence = threadIdx.x & 31; sequence < p.batch; sequence += 32)
    longest = max(longest, __ldg(p.lengths + sequence));
  return __reduce_max_sync(0xffffffffu, longest) > kPageTokens * (kOwnPerWarp * own_warps() - 4);
}

// Page queries that a sequence's own blocks write. INT_MAX: all of every sequence.
static __device__ __noinline__ int own_share(const PagedDecodeParams& p) {
  const BatchTotals all = totals_of(p.batch, [&](int sequence) { return count_of(plan_of(p, sequence)); });
  const int mean = all.sum / (p.batch * own_warps()) + 1;
  const int share = own_warps() * max(kOwnPerWarp, 2 * mean);
  return all.most <= share ? INT_MAX : share;
}

// The first sequence from `sequence` on that has a rest; p.batch: none.
static __device__ __noinline__ int next_with_rest(const PagedDecodeParams& p, int sequence, int share) {
  const int lane = threadIdx.x & 31;
#pragma unroll 1
  for (; sequence < p.batch; sequence += 32) {
    const bool rest = sequence + lane < p.batch && count_of(plan_of(p, sequence + lane)) > share;
    const unsigned found = __ballot_sync(0xffffffffu, rest);
    if (found != 0) return sequence + __ffs(found) - 1;
  }
  return p.batch;
}

// Every `stride`-th page query of a sequence, from `at` on to `end`.
template <int D, class RowsOf>
__device__ __forceinline__ void write_queries(const PagedDecodeParams& p, std::uint8_t* queries, int sequence,
                                              const SequencePlan& plan, float4 (&u)[D / 32], float4 (&w)[D / 32],
                                              const RowsOf& rows_of, int at, int stride, int end) {
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int pages = plan.page_end - plan.page_begin;
  const auto row_of = [&](int index) {
    const int position =
        index < pages ? plan.body_begin + (plan.page_begin + index) * kPageTokens : plan.group_position(index - pages);
    return reinterpret_cast<const float4*>(p.rope_phases) + static_cast<long long>(position) * (D / 4) + t;
  };
  PhaseRow<D> row;
  row.load(row_of(at));

  // Heads 2t and 2t + 1 of a lane's results.
  const int gqa_group = p.query_heads / p.kv_heads;
  std::uint8_t* to[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int head = 8 * static_cast<int>(blockIdx.y) + 2 * t + i;
    to[i] = head < p.query_heads
                ? const_cast<std::uint8_t*>(page_query_source(p, queries, sequence, head / gqa_group, gqa_group)) +
                      head % gqa_group * kPageQueryBytes + 8 * g
                : nullptr;
  }
#pragma unroll
  for (int s = 0; s < D / 32; ++s) {
    u[s] = times(kQueryUnit, u[s]), w[s] = times(kQueryUnit, w[s]);
  }

#pragma unroll 1
  for (; at < end; at += stride) {
    const PhaseRow<D> c = row;
    if (at + stride < end) row.load(row_of(at + stride));
    float y[2][4] = {};
    project_rotated<D>(y, u, w, c, rows_of);
    const int index = at < pages ? plan.page_begin + at : p.max_pages + at - pages;
    const long long offset = static_cast<long long>(index) * (gqa_group * kPageQueryBytes);
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // rows g + {0, 8, 16, 24}
      if (to[i] == nullptr) continue;
      const TwoTerms first = TwoTerms::of(y[0][i], y[0][2 + i]), second = TwoTerms::of(y[1][i], y[1][2 + i]);
      *reinterpret_cast<uint2*>(to[i] + offset) = make_uint2(first.high, second.high);
      *reinterpret_cast<uint2*>(to[i] + offset + kPageTermBytes) = make_uint2(first.low, second.low);
    }
  }
}

// Grid: (a sequence's own blocks, groups of eight query heads, batch).
template <int D>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    page_query_kernel(const __grid_constant__ PagedDecodeParams p, std::uint8_t* queries) {
  let_next_start();
  constexpr int kSteps = D / 16;
  constexpr bool kHeld = D <= 128;  // keeps the projection's high terms in registers if they suffice
  const int lane = threadIdx.x & 31;
  const uint4* table = reinterpret_cast<const uint4*>(p.tile_phases) + lane;
  uint4 held[kHeld ? 2 : 1][kHeld ? kSteps : 1];
  if constexpr (kHeld) {
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int k = 0; k < kSteps; ++k) held[m][k] = __ldg(table + 32 * (m * kSteps + k));
  }
  const auto rows_of = [&](int m, int k, bool low) {
    if constexpr (kHeld)
      if (!low) return held[m][k];
    return __ldg(table + (low ? phase_term_count(D) / 8 : 0) + 32 * (m * kSteps + k));
  };

  // First the block's own sequence, then its part of what others left.
  int sequence = blockIdx.z, at = kWarps * static_cast<int>(blockIdx.x) + (static_cast<int>(threadIdx.x) >> 5);
  int stride = own_warps(), share = kOwnPerWarp * stride;
#pragma unroll 1
  for (bool own = true; sequence < p.batch; own = false) {
    // The heads' operand before rotation: column g. Columns after the heads are never stored.
    float4 u[D / 32], w[D / 32];
    const int head = min(8 * static_cast<int>(blockIdx.y) + (lane >> 2), p.query_heads - 1);
    load_operand<D>(p, sequence, head, lane & 3, u, w);
    const SequencePlan plan = plan_of(p, sequence);
    const int count = count_of(plan);
    const bool known = own && count > share;
    if (known) share = own_share(p);
    const int end = own ? min(count, share) : count;
    if (at < end) write_queries<D>(p, queries, sequence, plan, u, w, rows_of, at, stride, end);
    if (own) {
      if (!known && !some_longer(p)) break;
      if (!known) share = own_share(p);
      at += static_cast<int>(blockIdx.z) * stride, stride *= p.batch;
    }
    if (share == INT_MAX) break;
    sequence = next_with_rest(p, own ? 0 : sequence + 1, share);
    at = share + at % stride;
  }
  wait_for_previous();  // so that who waits for this kernel has waited for the one before it
}

template <int D>
cudaError_t launch(const PagedDecodeParams& p, std::uint8_t* queries, cudaStream_t stream) {
  int device = 0, multiprocessors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess || p.batch == 0) return error;
  // Fills the multiprocessors, with at least one page query per warp of the longest sequence. Tables may be much wider
  // than sequences are long, so more blocks would mostly have no work, and each costs time (H200, 64 sequences of 640
  // tokens, tables of 3,128 pages: 118 us a layer with 16 page queries per warp, 62 like this).
  const int most = page_queries(p.max_pages, p.sink_pages + p.ring_pages), eights = (p.query_heads + 7) / 8;
  const std::int64_t full = blocks_of(kBlocksPerSm * multiprocessors, eights * p.batch);
  const dim3 grid = grid_of(std::min(blocks_of(most, kWarps), full), eights, p.batch);
  return p.model_query != nullptr ? launch_early<page_query_kernel<D>>(grid, kThreads, stream, p, queries)
                                  : launch_kernel<page_query_kernel<D>>(grid, kThreads, stream, p, queries);
}

}  // namespace

cudaError_t write_page_queries(const PagedDecodeParams& p, std::uint8_t* queries, cudaStream_t stream) {
  return for_fast_head_dim(p.head_dim, [&]<int D>() { return launch<D>(p, queries, stream); });
}

}  // namespace oscar::kernels
