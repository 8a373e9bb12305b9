// The work of one warp for one (sequence, KV head): its code pages, then its BF16 tiles, through its ring of slots.
#pragma once

#include "kernels/decode/band_codes.cuh"
#include "kernels/decode/config.cuh"
#include "kernels/decode/page_queries.h"
#include "kernels/decode/phase_logits.cuh"
#include "kernels/decode/pipeline.cuh"
#include "kernels/decode/schedule.cuh"
#include "kernels/decode/uniform_codes.cuh"
#include "kernels/decode/window_tiles.cuh"

namespace oscar::kernels {

// Pages page, page + stride, ... of the body, and BF16 tiles tile, tile + stride, ... among the sink and ring tiles of
// the sequence.
struct WarpShare {
  int page, page_end, tile, tile_end, stride;

  // Every `stride`-th of the pages [page_begin, page_end), starting at `index`. Tiles start from the other end, so that
  // warps with one page less get the first tiles.
  __device__ static WarpShare make(int page_begin, int page_end, int tile_begin, int tile_end, int index, int stride) {
    return {page_begin + index, page_end, tile_begin + stride - 1 - index, tile_end, stride};
  }
};

// Page ids read ahead: 32 of the warp's pages at a time, one per lane.
struct PageIds {
  int id;
  __device__ __forceinline__ void load(const std::int32_t* table, const WarpShare& share, int from, int lane) {
    const int page = share.page + (from + lane) * share.stride;
    id = page < share.page_end ? __ldg(table + page) : 0;
  }
  __device__ __forceinline__ int of(int i) const { return __shfl_sync(0xffffffffu, id, i & 31); }
};

// The sequence's first 32 window pages, read ahead for a warp: from global memory with its first loads, then in shared
// memory.
struct WindowPages {
  int id;
  __device__ __forceinline__ void load(const PagedDecodeParams& p, int sequence, int lane) {
    const int count = p.sink_pages + p.ring_pages;
    id = lane < count ? __ldg(p.window_table + sequence * count + lane) : 0;
  }
  __device__ __forceinline__ void keep(std::int32_t* shared, int lane) const {
    __syncwarp();
    shared[lane] = id;
    __syncwarp();
  }
  __device__ __forceinline__ static int of(const PagedDecodeParams& p, const std::int32_t* shared, int sequence,
                                           int i) {
    return i < 32 ? shared[i] : __ldg(p.window_table + sequence * (p.sink_pages + p.ring_pages) + i);
  }
};

// The ring of a warp over a full launch: a slot is filled again as soon as it has been read.
struct RingPosition {
  SharedAddress slots;  // the warp's first slot
  int slot = 0, phase = 0;
};

// The queries [gqa_group, D] BF16 of a KV head, as pairs. With page queries, the kernel that writes these may still
// run, and the one before it, which writes queries and windows: they are waited for.
template <class C>
__device__ __forceinline__ const std::uint32_t* written_queries(const PagedDecodeParams& p, int sequence, int kv_head,
                                                                int gqa_group) {
  const std::uint32_t* q = static_cast<const std::uint32_t*>(p.q) +
                           (static_cast<long long>(sequence) * p.query_heads + kv_head * gqa_group) * (C::D / 2);
  if constexpr (C::Codes::kPositions) {
    wait_for_previous();
    asm volatile("" : "+l"(q));  // so that no read through it moves before the wait
  }
  return q;
}

// A warp's registers during one item.
template <class C>
struct WarpWork {
  using Codes = typename C::Codes;
  static constexpr int D = C::D, NT = C::NT;
  using Head = HeadFragment<NT>;
  WarpState<D, NT> state;
  Codes codes;

  __device__ __forceinline__ static const std::uint8_t* window_source(const PagedDecodeParams& p,
                                                                      const SequencePlan& plan,
                                                                      const std::int32_t* window_pages, int sequence,
                                                                      int kv_head, int tile, int half) {
    if (tile >= plan.sink_tiles) {
      tile = plan.ring_position / kTileTokens % (p.ring_pages * kTilesPerPage) + tile - plan.sink_tiles;
      if (tile >= p.ring_pages * kTilesPerPage) tile -= p.ring_pages * kTilesPerPage;
      tile += p.sink_pages * kTilesPerPage;
    }
    const int page = WindowPages::of(p, window_pages, sequence, tile / kTilesPerPage);
    return p.window_pages + (static_cast<long long>(page) * p.kv_heads + kv_head) * window_page_bytes(D) +
           tile % kTilesPerPage * window_tile_bytes(D) + half * (window_tile_bytes(D) / 2);
  }

  // The part of the logits before the codes, for the M tiles in a slot. queries: the slot's page queries; first: the
  // first tile among the four that share them.
  template <int M>
  __device__ __forceinline__ static void position_logits(const DecodeLaunch& a, float (&s)[M][Head::kSize],
                                                         SharedAddress queries, int first, int lane) {
    if constexpr (Codes::kPositions) {
      phase_logits<NT, M>(s, queries, a.p.tile_phases + projection_count(D) + first * kTileTokens * kPageRank,
                          phase_term_count(D) / 8, a.gqa_group, lane);
    } else {
#pragma unroll
      for (int m = 0; m < M; ++m)
#pragma unroll
        for (int k = 0; k < Head::kSize; ++k) s[m][k] = 0.0f;
    }
  }

  // A page that has landed; visible: its tokens that take part.
  __device__ __forceinline__ void attend_page(const DecodeLaunch& a, SharedAddress data, TokenRange visible,
                                              float soft_cap, SharedAddress scratch, int lane) {
    constexpr int M = Codes::kTiles;
    float s[M][Head::kSize];
    position_logits<M>(a, s, data + a.row_offset, 0, lane);
    static_assert(!Codes::kPositions || M == kTilesPerPage);
    codes.begin_page(a, data, scratch, lane);
#pragma unroll 1
    for (int tile = 0; tile * kTileTokens < visible.last; tile += M) {
      std::uint32_t weights[M][Head::kWords];  // FP16 pairs
      float w[M][Head::kSize];
      TokenScales<M, NT> scales;
      codes.score(a, s, scales, data, tile, scratch, lane);
      softmax_weights<Codes::kLean>(state, s, w, scales, soft_cap,
                                    TokenRange{visible.first - tile * kTileTokens, visible.last - tile * kTileTokens},
                                    Codes::kWeights, lane, [&] {
#pragma unroll
                                      for (int m = 0; m < M; ++m)
#pragma unroll
                                        for (int k = 0; k < Head::kWords; ++k)
                                          weights[m][k] = pack_f16(w[m][2 * k], w[m][2 * k + 1]);
                                    });
#pragma unroll
      for (int m = 0; m < M; ++m)
#pragma unroll
        for (int k = 0; k < Head::kWords; ++k) weights[m][k] = Head::operand(weights[m][k]);
      codes.accumulate(a, state, weights, data, tile, scratch, lane);
    }
  }

  // A BF16 tile, whose keys and values land one after the other: landed() waits for a slot, release() frees it.
  template <class Landed, class Release>
  __device__ __forceinline__ void attend_window(const DecodeLaunch& a, const std::uint32_t* q, int position,
                                                TokenRange range, float scale, float soft_cap, int lane,
                                                const Landed& landed, const Release& release) {
    constexpr int kPart = D > 256 ? 128 : D;  // channels of the query that registers hold beside the outputs
    QueryPairs<kPart, NT> query;
    query.load(q, D / 2, 0, a.gqa_group, lane);
    float s[1][Head::kSize] = {}, w[1][Head::kSize];
    TokenScales<1, NT> scales;
#pragma unroll
    for (int r = 0; r < Head::kRows; ++r) scales.key[0][r] = scale, scales.value[0][r] = 1.0f;
    const SharedAddress keys = landed();
    score_window(s, query, keys, lane);
#pragma unroll
    for (int first = kPart; first < D; first += kPart) {
      query.load(q, D / 2, first / 2, a.gqa_group, lane);
      score_window(s, query, keys + 32 * first, lane);
    }
    float by_position[1][Head::kSize];
    if constexpr (Codes::kPositions) {
      position_logits<1>(a, by_position, keys + a.row_offset, position / kTileTokens % kTilesPerPage, lane);
    }
    release();
    if constexpr (Codes::kPositions) {
#pragma unroll
      for (int k = 0; k < Head::kSize; ++k) s[0][k] += by_position[0][k];
    }
    softmax_weights<Codes::kLean>(state, s, w, scales, soft_cap, range, Codes::kWeights, lane, [] {});
    accumulate_window<D, NT>(state, w, a, codes, landed(), lane);
    release();
  }

  // The data that a warp copies for an item: pages, and after each page in its slot the page queries.
  struct Sources {
    const std::uint8_t *pages, *page_queries;
    long long page_stride;
    int query_bytes, row_offset;

    __device__ __forceinline__ Sources(const DecodeLaunch& a, int sequence, int kv_head)
        : pages(a.p.pages + static_cast<long long>(kv_head) * a.page_bytes),
          page_queries(Codes::kPositions ? page_query_source(a.p, a.page_queries, sequence, kv_head, a.gqa_group)
                                         : nullptr),
          page_stride(static_cast<long long>(a.p.kv_heads) * a.page_bytes),
          query_bytes(a.gqa_group * kPageQueryBytes),
          row_offset(a.row_offset) {}

    // Page queries `index`; empty if not needed.
    __device__ __forceinline__ CopyPart queries(SharedAddress slot, int index, bool needed) const {
      if constexpr (!Codes::kPositions) return CopyPart{};
      return CopyPart{slot + row_offset, page_queries + static_cast<long long>(index) * query_bytes,
                      needed ? query_bytes : 0};
    }
  };

  // ids: already loaded for the share's first 32 pages. queries: written_queries(). after_issue: called once the first
  // page is in flight.
  template <class AfterIssue>
  __device__ __forceinline__ void run(const DecodeLaunch& a, const SequencePlan& plan, int sequence, int kv_head,
                                      const WarpShare& share, PageIds ids, const WindowPages& windows,
                                      DecodeShared<C>& shared, const std::uint32_t* queries,
                                      const typename Codes::Query& query_source, const CopyRing& ring, RingPosition& at,
                                      SharedAddress scratch, std::uint8_t* item_shared, int warp, int lane,
                                      AfterIssue&& after_issue) {
    const PagedDecodeParams& p = a.p;
    const std::int32_t* table = p.page_table + static_cast<long long>(sequence) * p.max_pages;
    const float scale = p.soft_cap > 0.0f ? p.scale / p.soft_cap : p.scale * kLog2E;
    const float soft_cap = p.soft_cap * kLog2E;
    const Sources sources(a, sequence, kv_head);
    // The next data to copy.
    int issued = 0, issue_page = share.page, issue_tile = share.tile, half = 0;
    const auto issue = [&](int slot) {
      if (issue_page < share.page_end) {
        const std::uint8_t* source = sources.pages + ids.of(issued) * sources.page_stride;
        if ((issued & 31) == 31) ids.load(table, share, issued + 1, lane);
        const SharedAddress to = at.slots + slot * a.slot_bytes;
        ring.copy(lane, slot, {to, source, a.page_bytes}, sources.queries(to, issue_page, true));
        ++issued;
        issue_page += share.stride;
      } else if (issue_tile < share.tile_end) {
        const std::uint8_t* source =
            window_source(p, plan, shared.window_pages[warp], sequence, kv_head, issue_tile, half);
        const SharedAddress to = at.slots + slot * a.slot_bytes;
        ring.copy(lane, slot, {to, source, window_tile_bytes(D) / 2},
                  sources.queries(to, p.max_pages + plan.group_of(issue_tile), half == 0));
        if (half == 1) issue_tile += share.stride;
        half ^= 1;  // a BF16 tile takes two slots: keys, values
      }
      ring.commit();
    };
    const auto next = [&](int slot) { return slot + 1 == a.slots ? 0 : slot + 1; };
    const auto landed = [&]() {
      ring.wait(at.slot, at.phase, a.slots);
      return at.slots + at.slot * a.slot_bytes;
    };
    const auto release = [&]() {
      __syncwarp();
      issue(at.slot);
      at.slot = next(at.slot);
      if (at.slot == 0) at.phase ^= 1;
    };
    // Every warp's first page is issued before any warp's second.
    const bool any_page = share.page < share.page_end;
    if (any_page) issue(at.slot);
    after_issue();
    windows.keep(shared.window_pages[warp], lane);
    if (!any_page) issue(at.slot);
    codes.prepare(a, query_source, scale, item_shared, scratch, warp, lane);
#pragma unroll 1
    for (int slot = next(at.slot); slot != at.slot; slot = next(slot)) issue(slot);
    state.clear();
#pragma unroll 1
    for (int page = share.page; page < share.page_end; page += share.stride) {
      SharedAddress data = landed();
      keep(data);
      const int base = plan.body_begin + page * kPageTokens;
      attend_page(a, data, {plan.first_visible - base, min(kPageTokens, plan.body_end - base)}, soft_cap, scratch,
                  lane);
      release();
    }
#pragma unroll 1
    for (int tile = share.tile; tile < share.tile_end; tile += share.stride) {
      const bool sink = tile < plan.sink_tiles;
      const int base = plan.tile_position(tile);
      const TokenRange range{max(sink ? 0 : plan.body_end, plan.first_visible) - base,
                             (sink ? min(p.sink, plan.length) : plan.length) - base};
      attend_window(a, queries, base, range, scale, soft_cap, lane, landed, release);
    }
    codes.finish(a, state, lane);
  }
};

}  // namespace oscar::kernels
