// Decode attention over per-channel keys and per-token values: a grid of parts, then their merge.
//
// An item is (sequence, 8 query heads of a KV head). Its parts are blocks whose warps divide the full pages, each warp
// with its own ring of shared memory (decode/pipeline.cuh), and blocks of 32 loose tokens. Parts merge in order.
#include "kernels/kivi/kivi_attention.h"

#include <algorithm>

#include "kernels/common/shared_memory_limit.h"
#include "kernels/decode/pipeline.cuh"
#include "kernels/kivi/line_page.cuh"
#include "kernels/kivi/loose_tokens.cuh"

namespace oscar::kernels {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps, kSlots = 2, kHeads = 8;

// Values that the host derives from the parameters.
struct Launch {
  KiviAttentionParams p;
  int gqa_group, head_tiles;  // query heads per KV head, and tiles of 8 of them
  int page_parts, parts;      // blocks of an item for pages, and in total
  int slot_bytes;
};

// Results of a part: [item][part]; only the parts of loose tokens write `plain`.
template <int D>
struct Part {
  float m[kHeads], l[kHeads], coded[kHeads][D], plain[kHeads][D];
};

__device__ __forceinline__ int full_pages(const KiviSequence& s) { return min(s.key_body, s.value_body) / 128; }

template <int D>
struct PageShared {
  std::uint64_t barriers[kWarps * kSlots];
  uint2 query[D / 16][32];  // operand B
  float largest[kWarps];
};

// The power of two below the largest |q| of the item; all threads call it.
template <int D>
__device__ __forceinline__ float query_unit(const Launch& a, const float* q, int heads, PageShared<D>& shared) {
  float top = 0.0f;
  for (int i = threadIdx.x; i < heads * D; i += kThreads) top = fmaxf(top, fabsf(q[i]));
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, offset));
  if ((threadIdx.x & 31) == 0) shared.largest[threadIdx.x / 32] = top;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kWarps; ++w) top = fmaxf(top, shared.largest[w]);
  return top > 0.0f ? __uint_as_float(__float_as_uint(top) & 0x7f800000u) : 1.0f;
}

// The item's query heads divided by `unit` as operand B; all threads call it.
template <int D>
__device__ __forceinline__ void share_query(const float* q, int heads, float inverse, PageShared<D>& shared) {
  for (int i = threadIdx.x; i < D / 16 * 32; i += kThreads) {
    const int k = i / 32, head = i % 32 / 4, channel = 16 * k + i % 4;
    const float* row = q + head * D + channel;
    const bool live = head < heads;
    shared.query[k][i % 32] = {live ? pack_f16(row[0] * inverse, row[4] * inverse) : 0u,
                               live ? pack_f16(row[8] * inverse, row[12] * inverse) : 0u};
  }
}

// Products of a page's keys -> logits times log2 e: scale, norms ([128] or null), cap, and -infinity before `begin`.
// position: of the page's first token.
__device__ __forceinline__ void finish_scores(const KiviAttentionParams& p, float (&scores)[4][2][4], float scale,
                                              const float* norms, int position, int begin, int g) {
#pragma unroll
  for (int f = 0; f < 4; ++f)
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const int token = 32 * f + 4 * g + line_byte(b, g);
      const float factor = norms != nullptr ? scale * __ldg(norms + token) : scale;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float& x = scores[f][b >> 1][2 * (b & 1) + h];
        x *= factor;
        if (p.soft_cap > 0.0f) x = p.soft_cap * tanhf(x / p.soft_cap);
        x = position + token >= begin ? x * 1.44269504f : -INFINITY;
      }
    }
}

// Merges the warps in shared memory into the part; all threads call it.
template <int D>
__device__ __forceinline__ void merge_warps(LineState<D>& state, std::uint8_t* pool, int heads, Part<D>& part) {
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3;
  __syncthreads();
  float* m = reinterpret_cast<float*>(pool);  // [kWarps][kHeads]
  float* l = m + kWarps * kHeads;
  float* o = l + kWarps * kHeads;  // [kWarps][kHeads][D + 4]
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int offset = 4; offset < 32; offset *= 2) state.l[h] += __shfl_xor_sync(0xffffffffu, state.l[h], offset);
    const int head = 2 * t + h;
    if (g == 0) m[warp * kHeads + head] = state.m[h], l[warp * kHeads + head] = state.l[h];
    float* row = o + (warp * kHeads + head) * (D + 4) + D / 32 * g;
#pragma unroll
    for (int f = 0; f < 4; ++f)
#pragma unroll
      for (int b = 0; b < D / 32; ++b) row[D / 4 * f + b] = state.o[f][b >> 1][2 * (b & 1) + h];
  }
  __syncthreads();
  for (int i = tid; i < heads * D; i += kThreads) {
    const int head = i / D, channel = i % D;
    float top = m[head], sum = 0.0f, total = 0.0f;
#pragma unroll
    for (int w = 1; w < kWarps; ++w) top = fmaxf(top, m[w * kHeads + head]);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float factor = exp2_approx(m[w * kHeads + head] - top);
      sum = fmaf(o[(w * kHeads + head) * (D + 4) + channel], factor, sum);
      total = fmaf(l[w * kHeads + head], factor, total);
    }
    part.coded[head][channel] = sum;
    if (channel == 0) part.m[head] = top, part.l[head] = total;
  }
}

template <int D, int kGroup>
__device__ __forceinline__ void attend_pages(const Launch& a, int sequence, int kv_head, int first_head, int heads,
                                             std::uint8_t* pool, PageShared<D>& shared, Part<D>& part) {
  constexpr int kKeyGroups = 128 / kGroup, kValueGroups = kGroup >= D ? 1 : D / kGroup;
  const KiviAttentionParams& p = a.p;
  const KiviSequence& s = p.sequences[sequence];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  const float* q = p.q_coded + (static_cast<long long>(sequence) * p.query_heads + first_head) * D;
  const float unit = query_unit<D>(a, q, heads, shared);
  share_query<D>(q, heads, 1.0f / unit, shared);
  const CopyRing ring{shared_address(&shared.barriers[warp * kSlots])};
  ring.init(lane, kSlots);
  __syncthreads();

  const int full = full_pages(s), stride = kWarps * a.page_parts;
  const int first = warp * a.page_parts + static_cast<int>(blockIdx.x);
  const int count = full > first ? (full - first + stride - 1) / stride : 0;
  std::uint8_t* slots = pool + warp * kSlots * a.slot_bytes;
  const std::uint32_t slots_address = shared_address(slots);
  const auto issue = [&](int use) {  // order: keys of a page, its values, keys of the next page, ...
    if (use < 2 * count) {
      const int page = first + (use >> 1) * stride;
      const KiviSide& side = use & 1 ? p.value : p.key;
      const int id = __ldg((use & 1 ? s.value_pages : s.key_pages) + page);
      ring.copy(lane, use & 1,
                {slots_address + (use & 1) * a.slot_bytes,
                 side.pages + id * side.page_bytes + (side.norms ? 512 : 0) +
                     static_cast<long long>(kv_head) * side.head_bytes,
                 side.head_bytes});
    }
    ring.commit();
  };
  const int begin = first_visible(s.length, p.sliding_window, p.chunk);
  const float scale = p.scale * unit;
  LineState<D> state;
  state.clear();
  issue(0);
  issue(1);
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    const int page = first + i * stride, position = p.sink + 128 * page;
    float scores[4][2][4];
    ring.wait(0, i & 1, kSlots);
    line_scores<D, kKeyGroups>(scores, slots, &shared.query[0][0], lane);
    __syncwarp();
    issue(2 * i + 2);
    const float* norms =
        p.key.norms ? reinterpret_cast<const float*>(p.key.pages + __ldg(s.key_pages + page) * p.key.page_bytes)
                    : nullptr;
    finish_scores(p, scores, scale, norms, position, begin, lane >> 2);
    line_softmax<D>(state, scores);
    ring.wait(1, i & 1, kSlots);
    line_accumulate<D, kValueGroups>(state, scores, slots + a.slot_bytes, lane);
    __syncwarp();
    issue(2 * i + 3);
  }
  line_finish<D>(state, lane);
  merge_warps<D>(state, pool, heads, part);
}

// Grid: (parts, KV heads x tiles of 8 query heads, batch).
template <int D, int kGroup>
__global__ void __launch_bounds__(kThreads, 2) parts_kernel(const __grid_constant__ Launch a) {
  extern __shared__ __align__(128) std::uint8_t pool[];
  __shared__ PageShared<D> shared;
  const KiviAttentionParams& p = a.p;
  const int sequence = blockIdx.z, kv_head = blockIdx.y / a.head_tiles, tile = blockIdx.y % a.head_tiles;
  const int first_head = kv_head * a.gqa_group + kHeads * tile, heads = min(kHeads, a.gqa_group - kHeads * tile);
  const KiviSequence& s = p.sequences[sequence];
  if (s.length <= 0) return;
  const long long item = static_cast<long long>(sequence) * gridDim.y + blockIdx.y;
  Part<D>& part = static_cast<Part<D>*>(p.workspace)[item * a.parts + blockIdx.x];
  if (static_cast<int>(blockIdx.x) < a.page_parts) {
    attend_pages<D, kGroup>(a, sequence, kv_head, first_head, heads, pool, shared, part);
    return;
  }
  const int first = (static_cast<int>(blockIdx.x) - a.page_parts) * kLooseTokens;
  const LooseResult<D> result = attend_loose<D>(p, sequence, kv_head, first_head, heads, full_pages(s), first,
                                                *reinterpret_cast<LooseRows<D>*>(pool));
  const int lane = threadIdx.x & 31, head = threadIdx.x >> 5;
  if (head >= heads) return;
#pragma unroll
  for (int i = 0; i < D / 32; ++i) {
    part.coded[head][lane + 32 * i] = result.coded[i];
    part.plain[head][lane + 32 * i] = result.plain[i];
  }
  if (lane == 0) part.m[head] = result.m, part.l[head] = result.l;
}

// Grid: (query heads, batch), D threads.
template <int D>
__global__ void __launch_bounds__(D) merge_kernel(const __grid_constant__ Launch a) {
  const KiviAttentionParams& p = a.p;
  const int query_head = blockIdx.x, sequence = blockIdx.y, channel = threadIdx.x;
  if (p.sequences[sequence].length <= 0) return;
  const int kv_head = query_head / a.gqa_group, in_group = query_head % a.gqa_group, head = in_group % kHeads;
  const long long item = (static_cast<long long>(sequence) * p.kv_heads + kv_head) * a.head_tiles + in_group / kHeads;
  const Part<D>* parts = static_cast<const Part<D>*>(p.workspace) + item * a.parts;
  float m = p.sink_logits != nullptr ? p.sink_logits[query_head] * 1.44269504f : -1e30f;
  for (int i = 0; i < a.parts; ++i) m = fmaxf(m, parts[i].m[head]);
  float l = p.sink_logits != nullptr ? exp2_approx(p.sink_logits[query_head] * 1.44269504f - m) : 0.0f;
  float coded = 0.0f, plain = 0.0f;
#pragma unroll 4
  for (int i = 0; i < a.parts; ++i) {
    const float factor = exp2_approx(parts[i].m[head] - m);
    l = fmaf(parts[i].l[head], factor, l);
    coded = fmaf(parts[i].coded[head][channel], factor, coded);
    if (i >= a.page_parts) plain = fmaf(parts[i].plain[head][channel], factor, plain);
  }
  const long long at = (static_cast<long long>(sequence) * p.query_heads + query_head) * D + channel;
  p.coded[at] = l > 0.0f ? coded / l : 0.0f;
  p.plain[at] = l > 0.0f ? plain / l : 0.0f;
}

// Two blocks per multiprocessor, but at most one page per warp.
Launch plan(const KiviAttentionParams& p) {
  Launch a{p, p.query_heads / p.kv_heads, 0, 0, 0, std::max(p.key.head_bytes, p.value.head_bytes)};
  a.head_tiles = (a.gqa_group + kHeads - 1) / kHeads;
  int device = 0, multiprocessors = 132;
  if (cudaGetDevice(&device) == cudaSuccess) {
    cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  }
  const int items = std::max(1, p.batch * p.kv_heads * a.head_tiles);
  a.page_parts = std::clamp(2 * multiprocessors / items, 1, std::max(1, (p.max_pages + kWarps - 1) / kWarps));
  a.parts = a.page_parts + (p.max_loose + kLooseTokens - 1) / kLooseTokens;
  return a;
}

template <int D, int kGroup>
cudaError_t launch(const Launch& a, cudaStream_t stream) {
  constexpr int kMerge = kWarps * kHeads * (2 + D + 4) * 4;
  const std::size_t bytes = std::max({static_cast<std::size_t>(kWarps * kSlots * a.slot_bytes),
                                      static_cast<std::size_t>(kMerge), sizeof(LooseRows<D>)});
  const auto kernel = parts_kernel<D, kGroup>;
  const cudaError_t error = allow_shared_memory<parts_kernel<D, kGroup>>(static_cast<int>(bytes));
  if (error != cudaSuccess) return error;
  kernel<<<dim3(static_cast<unsigned>(a.parts), static_cast<unsigned>(a.p.kv_heads * a.head_tiles),
                static_cast<unsigned>(a.p.batch)),
           kThreads, bytes, stream>>>(a);
  merge_kernel<D><<<dim3(static_cast<unsigned>(a.p.query_heads), static_cast<unsigned>(a.p.batch)), D, 0, stream>>>(a);
  return cudaGetLastError();
}

template <int D>
cudaError_t dispatch(const Launch& a, cudaStream_t stream) {
  switch (a.p.key.quant_group) {
    case 32:
      return launch<D, 32>(a, stream);
    case 64:
      return launch<D, 64>(a, stream);
    case 128:
      return launch<D, 128>(a, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

std::size_t kivi_attention_workspace_bytes(const KiviAttentionParams& p) {
  const Launch a = plan(p);
  const std::size_t part = p.head_dim == 64 ? sizeof(Part<64>) : sizeof(Part<128>);
  return part * static_cast<std::size_t>(a.parts) * static_cast<std::size_t>(p.batch * p.kv_heads * a.head_tiles);
}

cudaError_t kivi_attention(const KiviAttentionParams& p, cudaStream_t stream) {
  const bool heads = p.kv_heads > 0 && p.query_heads > 0 && p.query_heads % p.kv_heads == 0;
  const bool groups = p.value.quant_group == std::min(p.key.quant_group, p.head_dim) && !p.value.norms;
  if (!heads || !groups || p.batch < 0 || p.sink < 0) return cudaErrorInvalidValue;
  if (p.batch == 0) return cudaSuccess;
  const Launch a = plan(p);
  if (p.head_dim == 64) return dispatch<64>(a, stream);
  if (p.head_dim == 128) return dispatch<128>(a, stream);
  return cudaErrorInvalidValue;
}

}  // namespace oscar::kernels
