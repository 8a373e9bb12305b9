// Division of a launch's work. Every (sequence, KV head) is an item of units in a fixed order: first BF16 tiles (two
// units each, since they have twice the bytes), then code pages. There are three divisions:
//   whole  every block takes complete items, if the longest are not much longer than a block's equal share
//   parts  few items: each is cut into equal parts, one for each of a whole number of blocks, if these then have about
//          equal shares
//   line   the units of all items form one line, cut into equal ranges: the end of an item, complete items and the
//          start of another
// The last block to arrive merges the parts of an item in block order, so the result does not depend on timing.
#pragma once

#include <cstdint>

#include "kernels/common/quantized_end.h"
#include "kernels/decode/decode_attention.h"
#include "kernels/decode/visible.cuh"

namespace oscar::kernels {

// The tokens of one sequence, derived from its length: positions in each tier, and the tiles that must be read.
struct SequencePlan {
  int length;                // tokens, including the current one
  int first_visible;         // sliding window: first visible position
  int body_begin, body_end;  // positions of the quantized body
  int page_begin, page_end;  // pages of the body with a visible token
  int sink_tiles, ring_tiles;
  int ring_position;  // position of the first token of the first ring tile (a multiple of 16)

  __device__ int window_tiles() const { return sink_tiles + ring_tiles; }
  __device__ int units() const { return 2 * window_tiles() + (page_end - page_begin); }
  // Position of the first token of a BF16 tile: sink tiles first, then ring tiles.
  __device__ int tile_position(int tile) const {
    return tile < sink_tiles ? tile * kTileTokens : ring_position + (tile - sink_tiles) * kTileTokens;
  }

  // Groups of 64 tokens of the windows, from multiples of 64 on: those of the sink first. Tiles of a group share a page
  // query.
  __device__ int sink_groups() const { return (sink_tiles + kTilesPerPage - 1) / kTilesPerPage; }
  __device__ int window_groups() const { return window_tiles() == 0 ? 0 : group_of(window_tiles() - 1) + 1; }
  __device__ int group_position(int group) const {
    const int sinks = sink_groups();
    return group < sinks ? group * kPageTokens : (ring_position / kPageTokens + group - sinks) * kPageTokens;
  }
  __device__ int group_of(int tile) const {
    if (tile < sink_tiles) return tile / kTilesPerPage;
    return sink_groups() + tile_position(tile) / kPageTokens - ring_position / kPageTokens;
  }

  __device__ static SequencePlan make(const PagedDecodeParams& p, int length) {
    SequencePlan s;
    s.length = length;
    if (length <= 0) {
      s.first_visible = s.body_begin = s.body_end = s.page_begin = s.page_end = s.sink_tiles = s.ring_tiles =
          s.ring_position = 0;
      return s;
    }
    s.first_visible = oscar::kernels::first_visible(length, p.sliding_window, p.chunk);
    s.body_begin = p.sink;
    s.body_end = quantized_end(length, p.sink, p.recent, p.flush);
    const int pages = (s.body_end - s.body_begin + kPageTokens - 1) / kPageTokens;
    s.page_end = pages;
    s.page_begin = min(pages, max(0, s.first_visible - s.body_begin) / kPageTokens);
    const int sink_tokens = min(p.sink, length);
    s.sink_tiles = s.first_visible >= sink_tokens ? 0 : (sink_tokens + kTileTokens - 1) / kTileTokens;
    // Token p is in ring slot p % slots, and the slots are a multiple of 16, so tiles follow the positions.
    const int recent_begin = max(s.body_end, s.first_visible);
    s.ring_position = recent_begin / kTileTokens * kTileTokens;
    s.ring_tiles = length <= recent_begin ? 0 : (length - s.ring_position + kTileTokens - 1) / kTileTokens;
    return s;
  }
};

// Equal contiguous ranges of a line of units: block c takes [begin(c), begin(c + 1)); the first `longer` blocks take
// one unit more.
struct Ranges {
  unsigned blocks, length, longer;

  __device__ static Ranges make(unsigned units, unsigned blocks) {
    const unsigned length = units / blocks;
    return {blocks, length, units - length * blocks};
  }
  __device__ int begin(unsigned block) const { return static_cast<int>(block * length + min(block, longer)); }
  __device__ int owner(unsigned unit) const {
    const unsigned split = longer * (length + 1);
    const bool front = unit < split;
    return static_cast<int>((front ? 0 : longer) + (front ? unit : unit - split) / (length + (front ? 1 : 0)));
  }
};

// Units of one sequence. Not inlined: the walks below use it in several places, and a cold launch reads every
// instruction from memory.
static __device__ __noinline__ int sequence_units(const PagedDecodeParams& p, int sequence) {
  return SequencePlan::make(p, p.lengths[sequence]).units();
}

// A warp's walk over the batch, 32 sequences at a time. f(b): share of sequence b. Returns the sum of all shares. With
// target >= 0 it stops at the sequence that contains `target` and fills `found`.
struct Found {
  int sequence, begin;  // the sequence, and the sum before it
};
template <class F>
__device__ __forceinline__ int walk_batch(int batch, int target, Found& found, F&& f) {
  const int lane = threadIdx.x & 31;
  int base = 0;
#pragma unroll 1
  for (int b0 = 0; b0 < batch; b0 += 32) {
    const int share = b0 + lane < batch ? f(b0 + lane) : 0;
    const int sum = static_cast<int>(__reduce_add_sync(0xffffffffu, static_cast<unsigned>(share)));
    if (target >= 0 && target < base + sum) {
      int inclusive = share;
#pragma unroll 1
      for (int offset = 1; offset < 32; offset *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, inclusive, offset);
        if (lane >= offset) inclusive += other;
      }
      const int first = __ffs(__ballot_sync(0xffffffffu, base + inclusive > target)) - 1;
      found = {b0 + first, base + __shfl_sync(0xffffffffu, inclusive - share, first)};
      return base + sum;
    }
    base += sum;
  }
  return base;
}

// Sum and largest of all shares f(b).
struct BatchTotals {
  int sum, most;
};
template <class F>
__device__ __forceinline__ BatchTotals totals_of(int batch, F&& f) {
  Found found;
  int most = 0;
  const int sum = walk_batch(batch, -1, found, [&](int b) {
    const int share = f(b);
    most = max(most, share);
    return share;
  });
  return {sum, __reduce_max_sync(0xffffffffu, most)};
}

// One item, or this block's part of it.
struct ItemRange {
  SequencePlan plan;
  int sequence, kv_head;
  int from, to;            // range of units of the item
  int first_block, parts;  // blocks that share the item
  bool second;             // true if the item is the second result of its first block
};

enum class Division { kWhole, kParts, kLine };

// Units that a block may read beyond its equal share rather than share items with others, who start and merge twice.
// (H200, a layer's pass of 96 sequences of 320 to 960 tokens and 2 KV heads: 39 us whole, 48 as a line.)
constexpr int kUnitsOfSharing = 60;

// The work of this block. Every warp computes it itself, so no barrier is needed.
struct BlockWork {
  bool empty;
  Division division;
  int part_units;     // kParts: units of the largest part
  Ranges line;        // kLine
  int position, end;  // kLine: the block's range of the line; kWhole: its next item, and the number of all
  Found at;           // sequence, and its first block (kParts) or first unit (kLine)

  __device__ BlockWork(const PagedDecodeParams& p, int least) {
    const auto units = [&](int b) { return sequence_units(p, b); };
    const int blocks = static_cast<int>(gridDim.x), items = p.batch * p.kv_heads;
    const BatchTotals all = totals_of(p.batch, units);
    const int total = all.sum * p.kv_heads;
    empty = total == 0;
    if (empty) return;
    if (2 * items > blocks && (items + blocks - 1) / blocks * all.most <= total / blocks + kUnitsOfSharing) {
      division = Division::kWhole;
      position = static_cast<int>(blockIdx.x), end = items;
      empty = position >= end;
      return;
    }
    bool split = 2 * items <= blocks;
    if (split) {
      // Finds the smallest part for which all parts fit the grid, by small steps up from the lower bound. A part that
      // is much larger than the mean would leave most blocks waiting for a few.
      part_units = max(least, (total + blocks - 1) / blocks);
      const int most = max(4 * least, 7 * total / (5 * blocks));
#pragma unroll 1
      while (split && walk_batch(p.batch, -1, at, [&](int b) { return parts_of(units(b)); }) * p.kv_heads > blocks) {
        part_units += (part_units + 31) / 32;
        split = part_units <= most;
      }
    }
    division = split ? Division::kParts : Division::kLine;
    if (split) {
      const int target = static_cast<int>(blockIdx.x);
      empty = target >= walk_batch(p.batch, target, at, [&](int b) { return parts_of(units(b)) * p.kv_heads; });
    } else {
      line = Ranges::make(total, min(blocks, total));
      empty = blockIdx.x >= line.blocks;
      if (empty) return;
      position = line.begin(blockIdx.x);
      end = line.begin(blockIdx.x + 1);
      walk_batch(p.batch, position, at, [&](int b) { return units(b) * p.kv_heads; });
    }
  }
  __device__ int parts_of(int units) const {
    return static_cast<int>(static_cast<unsigned>(units + part_units - 1) / static_cast<unsigned>(part_units));
  }

  // The block's next item; `at` moves to its sequence. Whole items may be empty.
  __device__ __forceinline__ ItemRange next_item(const PagedDecodeParams& p) {
    ItemRange item;
    if (division == Division::kWhole) at.sequence = static_cast<int>(position / static_cast<unsigned>(p.kv_heads));
    item.plan = SequencePlan::make(p, p.lengths[at.sequence]);
    if (division == Division::kWhole) {
      whole_item(p, item);
    } else if (division == Division::kParts) {
      split_item(item);
    } else {
      line_item(p, item);
    }
    item.sequence = at.sequence;
    return item;
  }
  // Whether the block has another item after this one.
  __device__ __forceinline__ bool advance(const ItemRange& item) {
    if (division == Division::kParts) return false;
    position += division == Division::kWhole ? static_cast<int>(gridDim.x) : item.to - item.from;
    return position < end;
  }
  __device__ __forceinline__ void whole_item(const PagedDecodeParams& p, ItemRange& item) const {
    item.kv_head = position - at.sequence * p.kv_heads;
    item.from = 0, item.to = item.plan.units();
    item.first_block = static_cast<int>(blockIdx.x), item.parts = 1, item.second = false;
  }
  __device__ __forceinline__ void split_item(ItemRange& item) const {
    item.parts = parts_of(item.plan.units());
    const unsigned index = blockIdx.x - at.begin;
    item.kv_head = static_cast<int>(index / static_cast<unsigned>(item.parts));
    const int part = static_cast<int>(index) - item.kv_head * item.parts;
    const Ranges cut = Ranges::make(item.plan.units(), item.parts);
    item.from = cut.begin(part);
    item.to = cut.begin(part + 1);
    item.first_block = static_cast<int>(blockIdx.x) - part;
    item.second = false;
  }
  __device__ __forceinline__ void line_item(const PagedDecodeParams& p, ItemRange& item) {
#pragma unroll 1
    while (position >= at.begin + item.plan.units() * p.kv_heads) {
      // Moves to the next sequence with work; there is one, because position < end <= total.
      at.begin += item.plan.units() * p.kv_heads;
      item.plan = SequencePlan::make(p, p.lengths[++at.sequence]);
    }
    const unsigned units = item.plan.units();
    item.kv_head = static_cast<int>(static_cast<unsigned>(position - at.begin) / units);
    const int item_begin = at.begin + item.kv_head * static_cast<int>(units),
              item_end = item_begin + static_cast<int>(units);
    item.from = position - item_begin;
    item.to = min(end, item_end) - item_begin;
    item.first_block = line.owner(item_begin);
    item.parts = line.owner(item_end - 1) - item.first_block + 1;
    // Only for the first block can the item be its second result; the other blocks began in the middle of the item.
    item.second = line.begin(item.first_block) < item_begin;
  }
};

}  // namespace oscar::kernels
