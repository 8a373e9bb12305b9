// Work split of one launch. Every (sequence, KV head) is an item of units in a fixed order: BF16 tiles (two units each,
// they carry twice the bytes), then code pages. All items' units form one line, cut into equal ranges, one for each
// block. A block covers the end of an item, whole items and the start of another; items cut by a boundary leave partial
// results that the block arriving last merges in block order, so the result does not depend on timing.
#pragma once

#include <cstdint>

#include "kernels/decode_attention_cuda.h"

namespace oscar::kernels {

// The tokens of one sequence, from its length: which positions each tier holds and which tiles are worth reading.
struct SequencePlan {
  int length;                // tokens, the current one included
  int first_visible;         // sliding window: first position that is seen
  int body_begin, body_end;  // positions of the quantised body
  int page_begin, page_end;  // pages of the body with a visible token
  int sink_tiles, ring_tiles;
  int ring_position;  // position of the first token of the first ring tile (a multiple of 16)

  __device__ int window_tiles() const { return sink_tiles + ring_tiles; }
  __device__ int units() const { return 2 * window_tiles() + (page_end - page_begin); }

  __device__ static SequencePlan make(const DecodeAttentionParams& p, int length) {
    SequencePlan s;
    s.length = length;
    if (length <= 0) {
      s.first_visible = s.body_begin = s.body_end = s.page_begin = s.page_end = s.sink_tiles = s.ring_tiles =
          s.ring_position = 0;
      return s;
    }
    s.first_visible = p.sliding_window > 0 ? max(0, length - p.sliding_window) : 0;
    const int leaving = max(0, length - p.sink - p.recent);
    s.body_begin = p.sink;
    s.body_end = p.sink + (leaving & -p.flush);  // flush is a power of two
    const int pages = (s.body_end - s.body_begin + kPageTokens - 1) / kPageTokens;
    s.page_end = pages;
    s.page_begin = min(pages, max(0, s.first_visible - s.body_begin) / kPageTokens);
    const int sink_tokens = min(p.sink, length);
    s.sink_tiles = s.first_visible >= sink_tokens ? 0 : (sink_tokens + kTileTokens - 1) / kTileTokens;
    // Token p sits in ring slot p % slots and the slots are a multiple of 16, so tiles follow the positions.
    const int recent_begin = max(s.body_end, s.first_visible);
    s.ring_position = recent_begin / kTileTokens * kTileTokens;
    s.ring_tiles = length <= recent_begin ? 0 : (length - s.ring_position + kTileTokens - 1) / kTileTokens;
    return s;
  }
};

// Equal contiguous ranges of the line: block c takes [begin(c), begin(c + 1)), the first `longer` blocks one unit more.
struct Ranges {
  unsigned blocks, length, longer;

  // At least `least` units a block where that leaves blocks idle: small launches then have fewer parts to merge.
  __device__ static Ranges make(unsigned units, unsigned grid, unsigned least) {
    Ranges r;
    r.blocks = max(1u, min(grid, units / least));
    r.length = units / r.blocks;
    r.longer = units - r.length * r.blocks;
    return r;
  }
  __device__ int begin(unsigned block) const { return static_cast<int>(block * length + min(block, longer)); }
  __device__ int owner(unsigned unit) const {
    const unsigned split = longer * (length + 1);
    const bool front = unit < split;
    return static_cast<int>((front ? 0 : longer) + (front ? unit : unit - split) / (length + (front ? 1 : 0)));
  }
};

// What a block finds of the line: all units, and where a given unit lies. Every warp scans alone, 32 sequences at a
// time, so no barrier is needed.
struct LinePosition {
  int total;           // units of the launch
  int sequence;        // that holds the block's first unit
  int sequence_begin;  // first unit of that sequence
  Ranges ranges;

  __device__ LinePosition(const DecodeAttentionParams& p, unsigned least) : sequence(0), sequence_begin(0) {
    const int lane = threadIdx.x & 31;
    int target = 0;
#pragma unroll 1
    for (int pass = 0; pass < 2; ++pass) {  // first the total, then the block's place
      int base = 0;
#pragma unroll 1
      for (int b0 = 0; b0 < p.batch; b0 += 32) {
        const int b = b0 + lane;
        const int units = b < p.batch ? SequencePlan::make(p, p.lengths[b]).units() * p.kv_heads : 0;
        const int sum = __reduce_add_sync(0xffffffffu, units);
        if (pass == 1 && target < base + sum) {
          int inclusive = units;
#pragma unroll 1
          for (int offset = 1; offset < 32; offset *= 2) {
            const int other = __shfl_up_sync(0xffffffffu, inclusive, offset);
            if (lane >= offset) inclusive += other;
          }
          const int first = __ffs(__ballot_sync(0xffffffffu, base + inclusive > target)) - 1;
          sequence = b0 + first;
          sequence_begin = base + __shfl_sync(0xffffffffu, inclusive - units, first);
          return;
        }
        base += sum;
      }
      total = base;
      if (total == 0) return;
      ranges = Ranges::make(total, gridDim.x, least);
      if (blockIdx.x >= ranges.blocks) return;
      target = ranges.begin(blockIdx.x);
    }
  }
};

}  // namespace oscar::kernels
