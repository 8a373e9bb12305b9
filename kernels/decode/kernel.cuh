// The decode kernel: schedule, per-warp pipeline, merge inside the block, merge between blocks.
#pragma once

#include <cuda_bf16.h>

#include "kernels/decode/pipeline.cuh"
#include "kernels/decode/schedule.cuh"
#include "kernels/decode/tiles.cuh"

namespace oscar::kernels {

template <int D_, int NT_>
struct DecodeConfig {
  static constexpr int D = D_, NT = NT_, kHeads = 8 * NT_;
  static constexpr int kWarps = 8;
  static constexpr int kThreads = 32 * kWarps;
  // A slot takes a code page, or the keys or the values of one BF16 tile.
  static constexpr int kSlotBytes = CodePage{D}.bytes();
  static_assert(kSlotBytes >= 32 * D && kSlotBytes % 16 == 0);
  static constexpr int kBlocksPerSm = NT == 2 || D == 256 ? 1 : 2;
  static constexpr int kDepth = D == 256 ? 2 : 3;  // 256: the ring of three would not fit sm_80
  static constexpr int kMergeRow = D + 4;  // floats; the padding keeps a warp's four head pairs in different banks
  static constexpr int kMergeBytes = kWarps * kHeads * (kMergeRow + 2) * 4;
  static constexpr int kRingBytes = kWarps * kDepth * kSlotBytes;
  // The merge area reuses the ring.
  static constexpr int kPoolBytes = kRingBytes > kMergeBytes ? kRingBytes : kMergeBytes;
};

// Shared memory that is not carved by hand.
template <class C>
struct DecodeShared {
  std::uint64_t barriers[C::kWarps * C::kDepth];
  int last_arriver;
};

// One block's result for an item cut by a block boundary.
template <class C>
struct Partial {
  float m[C::kHeads], l[C::kHeads], o[C::kHeads][C::D];
};

template <class C>
__device__ __forceinline__ void write_output(const DecodeAttentionParams& p, int sequence, int query_head, int channel,
                                             float m, float l, float o) {
  if (p.sink_logits != nullptr) l += exp2_approx(p.sink_logits[query_head] * 1.4426950408889634f - m);
  const float value = l > 0.0f ? o / l : 0.0f;
  const long long at = (static_cast<long long>(sequence) * p.query_heads + query_head) * C::D + channel;
  if (p.out_float) {
    static_cast<float*>(p.out)[at] = value;
  } else {
    static_cast<__nv_bfloat16*>(p.out)[at] = __float2bfloat16(value);
  }
}

// What a block does of one item, and where its bytes are.
struct ItemWork {
  SequencePlan plan;
  int sequence, kv_head;
  int tile_from, n_tiles;  // BF16 tiles [tile_from, tile_from + n_tiles)
  int page_from, n_pages;  // pages of the body
  int ring_tile;           // ring tile of the first recent tile

  __device__ ItemWork(const DecodeAttentionParams& p, const SequencePlan& plan_, int sequence_, int kv_head_, int from,
                      int to)
      : plan(plan_), sequence(sequence_), kv_head(kv_head_) {
    const int tiles = plan.window_tiles();
    tile_from = min(tiles, (from + 1) / 2);
    n_tiles = min(tiles, (to + 1) / 2) - tile_from;
    page_from = plan.page_begin + max(0, from - 2 * tiles);
    n_pages = max(0, to - 2 * tiles) - max(0, from - 2 * tiles);
    ring_tile = plan.ring_position / kTileTokens % (p.ring_pages * kTilesPerPage);
  }
  __device__ int units() const { return n_tiles + n_pages; }

  // Source of a unit's slot: a page, or half (keys, values) of a BF16 tile.
  template <class C>
  __device__ const std::uint8_t* source(const DecodeAttentionParams& p, int unit, int half) const {
    if (unit >= n_tiles) {
      const int page = p.page_table[static_cast<long long>(sequence) * p.max_pages + page_from + unit - n_tiles];
      return p.pages + (static_cast<long long>(page) * p.kv_heads + kv_head) * C::kSlotBytes;
    }
    int tile = tile_from + unit;  // among the sequence's window pages
    if (tile >= plan.sink_tiles) {
      tile = ring_tile + tile - plan.sink_tiles;
      if (tile >= p.ring_pages * kTilesPerPage) tile -= p.ring_pages * kTilesPerPage;
      tile += p.sink_pages * kTilesPerPage;
    }
    const int page = p.window_table[sequence * (p.sink_pages + p.ring_pages) + tile / kTilesPerPage];
    return p.window_pages + (static_cast<long long>(page) * p.kv_heads + kv_head) * window_page_bytes(C::D) +
           tile % kTilesPerPage * window_tile_bytes(C::D) + half * (window_tile_bytes(C::D) / 2);
  }
};

// Merges an item's parts in block order. results: two of each block from the item's first block on; scratch: shared
// memory for two floats of every part and head, and four of every thread.
template <class C>
__device__ __forceinline__ void merge_parts(const DecodeAttentionParams& p, const Partial<C>* results,
                                            const ItemRange& item, int group, float* scratch) {
  constexpr int D = C::D;
  const int tid = threadIdx.x, parts = item.parts;
  const auto part_of = [&](int i) -> const Partial<C>& { return results[2 * i + (i == 0 && item.second ? 1 : 0)]; };
  float* part_m = scratch;  // [parts][kHeads]: m, then the part's weight
  float* part_l = part_m + C::kHeads * parts;
#pragma unroll 1
  for (int i = tid; i < C::kHeads * parts; i += C::kThreads) {
    part_m[i] = __ldcg(&part_of(i / C::kHeads).m[i % C::kHeads]);
    part_l[i] = __ldcg(&part_of(i / C::kHeads).l[i % C::kHeads]);
  }
  __syncthreads();
  float* head_m = part_l + C::kHeads * parts;  // [kHeads]
  float* head_l = head_m + C::kHeads;          // [kHeads]
  // One warp a head: the largest reference, the weights, their sum.
#pragma unroll 1
  for (int head = tid / 32; head < group; head += C::kWarps) {
    const int lane = tid & 31;
    float m = kNoReference, l = 0.0f;
#pragma unroll 1
    for (int b = lane; b < parts; b += 32) m = fmaxf(m, part_m[b * C::kHeads + head]);
#pragma unroll 1
    for (int offset = 16; offset > 0; offset /= 2) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, offset));
#pragma unroll 1
    for (int b = lane; b < parts; b += 32) {
      const float f = exp2_approx(part_m[b * C::kHeads + head] - m);
      part_m[b * C::kHeads + head] = f;
      l = fmaf(part_l[b * C::kHeads + head], f, l);
    }
#pragma unroll 1
    for (int offset = 16; offset > 0; offset /= 2) l += __shfl_xor_sync(0xffffffffu, l, offset);
    if (lane == 0) head_m[head] = m, head_l[head] = l;
  }
  __syncthreads();
  // Four channels a thread; where threads are left, slices of the parts side by side.
  const int columns = group * (D / 4);
  const int slices = max(1, min(4, C::kThreads / columns));
  float4* slice_sum = reinterpret_cast<float4*>(head_l + C::kHeads);  // [slices][columns]
#pragma unroll 1
  for (int i = tid; i < slices * columns; i += C::kThreads) {
    const int slice = i / columns, column = i - slice * columns, head = column / (D / 4), c = column % (D / 4);
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
    for (int b = slice; b < parts; b += slices) {
      const float4 o = __ldcg(reinterpret_cast<const float4*>(&part_of(b).o[head][4 * c]));
      const float f = part_m[b * C::kHeads + head];
      sum.x = fmaf(o.x, f, sum.x), sum.y = fmaf(o.y, f, sum.y), sum.z = fmaf(o.z, f, sum.z),
      sum.w = fmaf(o.w, f, sum.w);
    }
    slice_sum[i] = sum;
  }
  __syncthreads();
#pragma unroll 1
  for (int i = tid; i < group * D; i += C::kThreads) {
    float o = 0.0f;
#pragma unroll 1
    for (int slice = 0; slice < slices; ++slice) o += reinterpret_cast<const float*>(slice_sum + slice * columns)[i];
    write_output<C>(p, item.sequence, item.kv_head * group + i / D, i % D, head_m[i / D], head_l[i / D], o);
  }
}

template <class C, bool kSoftCap>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksPerSm)
    decode_kernel(const __grid_constant__ DecodeAttentionParams p) {
  constexpr int D = C::D, NT = C::NT, kSteps = D / 16, kDepth = C::kDepth;
  constexpr CodePage kPage{D};
  extern __shared__ __align__(128) std::uint8_t pool[];
  __shared__ DecodeShared<C> shared;

  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  const int g = lane >> 2, t = lane & 3;
  const int group = p.query_heads / p.kv_heads;
  const CopyRing ring{shared_address(&shared.barriers[warp * kDepth])};
  ring.init(lane, kDepth);
  std::uint8_t* slots = pool + warp * kDepth * C::kSlotBytes;
  const std::uint32_t slots_address = shared_address(slots);

  BlockWork block(p, C::kWarps);
  if (block.empty) return;

  int* arrivals = static_cast<int*>(p.workspace);
  Partial<C>* partials = reinterpret_cast<Partial<C>*>(arrivals + (p.batch * p.kv_heads + 63) / 64 * 64);
  const float log2e = 1.4426950408889634f;

  int issue_slot = 0, slot = 0, phase = 0;  // of this warp's ring, over the whole launch
  bool first_item = true;
#pragma unroll 1
  while (true) {
    ItemRange item;
    item.plan = SequencePlan::make(p, p.lengths[block.at.sequence]);
    if (block.split) {
      item.parts = block.parts_of(item.plan.units());
      const unsigned index = blockIdx.x - block.at.begin;
      item.kv_head = static_cast<int>(index / static_cast<unsigned>(item.parts));
      const int part = static_cast<int>(index) - item.kv_head * item.parts;
      const Ranges cut = Ranges::make(item.plan.units(), item.parts);
      item.from = cut.begin(part);
      item.to = cut.begin(part + 1);
      item.first_block = static_cast<int>(blockIdx.x) - part;
      item.second = false;
    } else {
#pragma unroll 1
      while (block.position >= block.at.begin + item.plan.units() * p.kv_heads) {
        // On to the next sequence with work; there is one, because position < end <= total.
        block.at.begin += item.plan.units() * p.kv_heads;
        item.plan = SequencePlan::make(p, p.lengths[++block.at.sequence]);
      }
      const unsigned units = item.plan.units();
      item.kv_head = static_cast<int>(static_cast<unsigned>(block.position - block.at.begin) / units);
      const int begin = block.at.begin + item.kv_head * static_cast<int>(units), end = begin + static_cast<int>(units);
      item.from = block.position - begin;
      item.to = min(block.end, end) - begin;
      item.first_block = block.line.owner(begin);
      item.parts = block.line.owner(end - 1) - item.first_block + 1;
      // Only the first block can hold the item as its second result; the others began in its middle.
      item.second = block.line.begin(item.first_block) < begin;
    }
    item.sequence = block.at.sequence;
    const SequencePlan& plan = item.plan;
    const int sequence = item.sequence, kv_head = item.kv_head;
    const ItemWork work(p, plan, sequence, kv_head, item.from, item.to);

    // This warp's units are warp, warp + kWarps, ... A BF16 tile takes two slots (keys, values), a page one.
    int issue_unit = warp, issue_half = 0;
    const auto issue = [&]() {
      if (issue_unit < work.units()) {
        const bool window = issue_unit < work.n_tiles;
        ring.copy(lane, issue_slot, slots_address + issue_slot * C::kSlotBytes,
                  work.source<C>(p, issue_unit, issue_half), window ? window_tile_bytes(D) / 2 : C::kSlotBytes);
        issue_half = window && issue_half == 0 ? 1 : 0;
        if (issue_half == 0) issue_unit += C::kWarps;
        issue_slot = issue_slot + 1 == kDepth ? 0 : issue_slot + 1;
      }
      ring.commit();
    };
    const std::uint32_t* q = static_cast<const std::uint32_t*>(p.q) +
                             (static_cast<long long>(sequence) * p.query_heads + kv_head * group) * (D / 2);
    WarpState<D, NT> state;
    QueryFragments<D, NT> query;
    float window_scale = 0.0f, code_scale = 0.0f;
    int unit = warp, half = 0;
    float s[NT][4], prob[NT][4], w[NT][4];
    // Steps -kDepth .. -1 fill the ring, the query is loaded behind them, then every step consumes one slot.
#pragma unroll 1
    for (int step = -kDepth; step < 0 || unit < work.units(); ++step) {
      if (step >= 0) {
        const bool window = unit < work.n_tiles;
        ring.wait(slot, phase, kDepth);
        const std::uint8_t* data = slots + slot * C::kSlotBytes;
        int base;  // position of the unit's first token
        int first, last;
        if (window) {
          const int tile = work.tile_from + unit;
          const bool sink = tile < plan.sink_tiles;
          base = sink ? tile * kTileTokens : plan.ring_position + (tile - plan.sink_tiles) * kTileTokens;
          first = max(sink ? 0 : plan.body_end, plan.first_visible) - base;
          last = (sink ? min(p.sink, plan.length) : plan.length) - base;
        } else {
          base = plan.body_begin + (work.page_from + unit - work.n_tiles) * kPageTokens;
          first = plan.first_visible - base;
          last = plan.body_end - base;
        }
        if (window && half == 0) {
          score_window<D, NT>(s, q, group, data, lane);
        } else {
          const int tokens = window ? kTileTokens : min(kPageTokens, last);
          const bool masked = first > 0 || last < (window ? kTileTokens : kPageTokens);
#pragma unroll 1
          for (int token = 0; token < tokens; token += kTileTokens) {
            const std::uint8_t* keys = data + kPage.key_codes() + token * (D / 4);
            TokenParams params;
            if (window) {
              params = {{window_scale, window_scale}, {0.0f, 0.0f}, {1.0f, 1.0f}};
            } else {
              score_codes<D, NT>(s, query, keys, lane);
              const __half2* key_params = reinterpret_cast<const __half2*>(data + kPage.key_params()) + token;
              const __half2* value_params = reinterpret_cast<const __half2*>(data + kPage.value_params()) + token;
              const float2 k0 = __half22float2(key_params[g]), k1 = __half22float2(key_params[g + 8]);
              params = {{k0.x * code_scale, k1.x * code_scale},
                        {k0.y, k1.y},
                        {__low2float(value_params[g]), __low2float(value_params[g + 8])}};
            }
            softmax_weights<D, NT, kSoftCap>(state, s, prob, w, params, query.sum, p.soft_cap * log2e, masked,
                                             first - token, last - token, lane);
            if (window) {
              accumulate_window<D, NT>(state, prob, data, lane);
            } else {
              accumulate_codes<D, NT>(state, w, data + kPage.value_codes() + token * (D / 4),
                                      reinterpret_cast<const uint2*>(data + kPage.value_params()) + token / 2, lane);
            }
          }
        }
        half = window && half == 0 ? 1 : 0;
        if (half == 0) unit += C::kWarps;
        if (++slot == kDepth) slot = 0, phase ^= 1;
        __syncwarp();
      }
      issue();
      if (step == -1) {
        query.load(q, group, lane);
        window_scale = kSoftCap ? p.scale / p.soft_cap : p.scale * log2e;
        code_scale = window_scale * (0x1p24f / query.factor);
        state.clear();
      }
    }

    // Merge the warps through shared memory. Every copy this warp issued has been consumed, so the ring is free.
    __syncthreads();
    float* merge_m = reinterpret_cast<float*>(pool);   // [kWarps][kHeads]
    float* merge_l = merge_m + C::kWarps * C::kHeads;  // [kWarps][kHeads]
    float* merge_o = merge_l + C::kWarps * C::kHeads;  // [kWarps][kHeads][kMergeRow]
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float l = state.l[n][h];
#pragma unroll
        for (int offset = 4; offset < 32; offset *= 2) l += __shfl_xor_sync(0xffffffffu, l, offset);
        const float zeros = __shfl_sync(0xffffffffu, state.zeros[n][h], t);
        const int head = 8 * n + 2 * t + h;
        if (g == 0) {
          merge_m[warp * C::kHeads + head] = state.m[n][h];
          merge_l[warp * C::kHeads + head] = l;
        }
        if (head < group) {
          float* o = merge_o + (warp * C::kHeads + head) * C::kMergeRow;
#pragma unroll
          for (int i = 0; i < kSteps; ++i) {
            o[16 * i + g] = state.o[n][i][h] * static_cast<float>(1 << output_exponent<D>(i, 0)) - zeros;
            o[16 * i + g + 8] = state.o[n][i][h + 2] * static_cast<float>(1 << output_exponent<D>(i, 1)) - zeros;
          }
        }
      }
    __syncthreads();

    // A block cuts at most two items: the one it begins in the middle of, and the one it leaves unfinished.
    Partial<C>& partial = partials[2 * blockIdx.x + (first_item ? 0 : 1)];
#pragma unroll 1
    for (int i = tid; i < group * D; i += C::kThreads) {
      const int head = i / D, channel = i % D;
      float m = kNoReference;
#pragma unroll
      for (int v = 0; v < C::kWarps; ++v) m = fmaxf(m, merge_m[v * C::kHeads + head]);
      float l = 0.0f, o = 0.0f;
#pragma unroll
      for (int v = 0; v < C::kWarps; ++v) {
        const float f = exp2_approx(merge_m[v * C::kHeads + head] - m);
        l = fmaf(merge_l[v * C::kHeads + head], f, l);
        o = fmaf(merge_o[(v * C::kHeads + head) * C::kMergeRow + channel], f, o);
      }
      if (item.parts == 1) {
        write_output<C>(p, sequence, kv_head * group + head, channel, m, l, o);
      } else {
        __stcg(&partial.o[head][channel], o);
        if (channel == 0) __stcg(&partial.m[head], m), __stcg(&partial.l[head], l);
      }
    }
    if (item.parts > 1) {
      __threadfence();
      __syncthreads();
      const int cell = sequence * p.kv_heads + kv_head;
      if (tid == 0) {
        shared.last_arriver = atomicAdd(&arrivals[cell], 1) == item.parts - 1;
        if (shared.last_arriver) arrivals[cell] = 0;  // ready for the next launch
      }
      __syncthreads();
      if (shared.last_arriver) {
        __threadfence();
        merge_parts<C>(p, partials + 2 * item.first_block, item, group, reinterpret_cast<float*>(pool));
      }
    }
    if (block.split) return;
    block.position += item.to - item.from;
    if (block.position >= block.end) return;
    first_item = false;
    __syncthreads();  // the ring is written by bulk copies next
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
  }
}

template <int D, int NT>
cudaError_t launch_decode(const DecodeAttentionParams& p, cudaStream_t stream);
template <int D, int NT>
int decode_blocks();

}  // namespace oscar::kernels
