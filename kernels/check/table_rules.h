// What the tables of a step must be before kernels follow them: page and window ids inside their pools, no more pages
// than a row of a table has, runs inside their rows and pages. The rules for one sequence or run, for host and device;
// check_tables.h applies them to a whole table. python/oscar_kv/ops/table_checks.py has the same rules for the
// reference.
#pragma once

#include <cstdint>

#include "kernels/chunks/new_rows.h"
#include "kernels/chunks/past_rows.h"
#include "kernels/common/quantized_end.h"
#include "kernels/quantize/quantize_pages.h"

namespace oscar::kernels {

enum class TableFault : std::int32_t {
  kNone,
  kLength,      // a length below 0
  kPositions,   // more tokens than phases have positions
  kPageCount,   // more pages of codes than a row of the table has
  kPage,        // the id of a page
  kWindowPage,  // the id of a window page
  kRows,        // rows that are read
  kSlots,       // slots of a page
  kPosition,    // a position below 0
  kTileKind,    // of a tile
  kOutRows,     // rows that are written
  kSharedPage   // a page that an earlier run writes: they run at once, and tokens of a page share words
};

// The first fault of a sequence, run or tile.
struct FoundFault {
  TableFault kind = TableFault::kNone;
  std::int32_t item = 0;   // the sequence, run or tile
  std::int32_t place = 0;  // column of the table
  std::int32_t value = 0;  // what stands there
  std::int32_t limit = 0;  // it must be from 0 to limit - 1, or at most limit where it is a count
};

OSCAR_HOST_DEVICE constexpr bool outside(std::int32_t id, std::int32_t count) { return id < 0 || id >= count; }
// Whether `count` things from `first` on leave [0, limit).
OSCAR_HOST_DEVICE constexpr bool leaves(std::int32_t first, std::int32_t count, std::int64_t limit) {
  return first < 0 || count < 0 || std::int64_t{first} + count > limit;
}

template <class Run>
OSCAR_HOST_DEVICE constexpr FoundFault shared_page(const Run* runs, std::int32_t i) {
  for (std::int32_t j = 0; j < i; ++j) {
    if (runs[j].count != 0 && runs[j].page == runs[i].page) return {TableFault::kSharedPage, i, j, runs[i].page, 0};
  }
  return {};
}

// Tables of a decode step. Checks only window pages that hold a token that is read or written, and table entries of
// quantized pages: another layer may have taken further ones.
struct StepTables {
  const std::int32_t* lengths;                         // [batch], the newest token included
  const std::int32_t* table;                           // [batch, max_pages], or null: no codes are read
  const std::int32_t* window_table;                    // [batch, sink_pages + ring_pages]
  std::int32_t batch, max_pages, pages, window_pages;  // pages, window_pages: of the pools
  std::int32_t sink, recent, sink_pages, ring_pages;
  std::int32_t positions;  // of phases; 0: there are none
  bool newest_only;        // of the windows only the newest token's place is used

  OSCAR_HOST_DEVICE constexpr std::int32_t coded_end(std::int32_t n) const { return quantized_end(n, sink, recent, 1); }
  OSCAR_HOST_DEVICE constexpr std::int32_t window_column(std::int32_t position) const {
    return position < sink ? position / kPageTokens : sink_pages + position % (ring_pages * kPageTokens) / kPageTokens;
  }
  OSCAR_HOST_DEVICE constexpr FoundFault window_fault(std::int32_t b, std::int32_t position) const {
    const std::int32_t column = window_column(position);
    const std::int32_t id = window_table[std::int64_t{b} * (sink_pages + ring_pages) + column];
    if (outside(id, window_pages)) return {TableFault::kWindowPage, b, column, id, window_pages};
    return {};
  }
  OSCAR_HOST_DEVICE constexpr FoundFault operator()(std::int32_t b) const {
    const std::int32_t n = lengths[b];
    if (n < 0) return {TableFault::kLength, b, 0, n, 0};
    if (n == 0) return {};  // skipped
    if (positions > 0 && n > positions) return {TableFault::kPositions, b, 0, n, positions};
    const std::int32_t end = coded_end(n);
    const std::int32_t needed = (end - sink + kPageTokens - 1) / kPageTokens;
    if (table != nullptr && needed > max_pages) return {TableFault::kPageCount, b, 0, needed, max_pages};
    for (std::int32_t i = 0; table != nullptr && i < needed; ++i) {
      const std::int32_t id = table[std::int64_t{b} * max_pages + i];
      if (outside(id, pages)) return {TableFault::kPage, b, i, id, pages};
    }
    if (newest_only) return window_fault(b, n - 1);
    // One token of each window page is enough.
    const auto fault_from = [&](std::int32_t begin, std::int32_t until) {
      for (std::int32_t p = begin; p < until; p = (p / kPageTokens + 1) * kPageTokens) {
        const FoundFault fault = window_fault(b, p);
        if (fault.kind != TableFault::kNone) return fault;
      }
      return FoundFault{};
    };
    const FoundFault of_sink = fault_from(0, n < sink ? n : sink);
    return of_sink.kind != TableFault::kNone ? of_sink : fault_from(end, n);
  }
};

// Runs of rows that go to pages, or (rows < 0) whole pages that are read.
struct RunTables {
  const PageRun* runs;  // [count]
  std::int64_t rows;
  std::int32_t pages;

  OSCAR_HOST_DEVICE constexpr FoundFault operator()(std::int32_t i) const {
    const PageRun& run = runs[i];
    if (run.count == 0) return {};
    if (leaves(run.first_slot, run.count, kPageTokens)) {
      return {TableFault::kSlots, i, run.first_slot, run.count, kPageTokens};
    }
    if (rows >= 0 && leaves(run.first_row, run.count, rows)) {
      return {TableFault::kRows, i, run.first_row, run.count, static_cast<std::int32_t>(rows)};
    }
    if (outside(run.page, pages)) return {TableFault::kPage, i, 0, run.page, pages};
    if (run.first_position < 0) return {TableFault::kPosition, i, 0, run.first_position, 0};
    return rows >= 0 ? shared_page(runs, i) : FoundFault{};
  }
};

struct NewRunTables {
  const NewRun* runs;  // [count]
  std::int64_t rows;
  std::int32_t pages, window_pages, positions;  // positions: of phases; 0: there are none

  OSCAR_HOST_DEVICE constexpr FoundFault operator()(std::int32_t i) const {
    const NewRun& run = runs[i];
    if (run.count == 0) return {};
    if (leaves(run.first_row, run.count, rows)) {
      return {TableFault::kRows, i, run.first_row, run.count, static_cast<std::int32_t>(rows)};
    }
    if (run.first_position < 0) return {TableFault::kPosition, i, 0, run.first_position, 0};
    if (positions > 0 && leaves(run.first_position, run.count, positions)) {
      return {TableFault::kPositions, i, 0, run.first_position + run.count, positions};
    }
    if (run.page != -1 && outside(run.page, pages)) return {TableFault::kPage, i, 0, run.page, pages};
    if (run.page != -1 && leaves(run.first_slot, run.count, kPageTokens)) {
      return {TableFault::kSlots, i, run.first_slot, run.count, kPageTokens};
    }
    const FoundFault shared = run.page != -1 ? shared_page(runs, i) : FoundFault{};
    if (shared.kind != TableFault::kNone) return shared;
    if (run.window_page == -1) return {};
    if (outside(run.window_page, window_pages)) return {TableFault::kWindowPage, i, 0, run.window_page, window_pages};
    if (leaves(run.first_position % kPageTokens, run.count, kPageTokens)) {
      return {TableFault::kSlots, i, run.first_position % kPageTokens, run.count, kPageTokens};
    }
    return {};
  }
};

struct TileTables {
  const PastTile* tiles;  // [count]
  std::int64_t rows, out_rows;
  std::int32_t pages, window_pages, positions;

  OSCAR_HOST_DEVICE constexpr FoundFault operator()(std::int32_t i) const {
    const PastTile& tile = tiles[i];
    if (tile.count == 0) return {};
    if (outside(tile.kind, 3)) return {TableFault::kTileKind, i, 0, tile.kind, 3};
    if (leaves(tile.out_row, tile.count, out_rows)) {
      return {TableFault::kOutRows, i, tile.out_row, tile.count, static_cast<std::int32_t>(out_rows)};
    }
    const auto kind = static_cast<TileKind>(tile.kind);
    if (kind == TileKind::kNew) {
      if (!leaves(tile.page, tile.count, rows)) return {};
      return {TableFault::kRows, i, tile.page, tile.count, static_cast<std::int32_t>(rows)};
    }
    const bool coded = kind == TileKind::kCodes;
    if (outside(tile.page, coded ? pages : window_pages)) {
      return {coded ? TableFault::kPage : TableFault::kWindowPage, i, 0, tile.page, coded ? pages : window_pages};
    }
    if (leaves(tile.slot, tile.count, kPageTokens)) return {TableFault::kSlots, i, tile.slot, tile.count, kPageTokens};
    if (tile.position < 0) return {TableFault::kPosition, i, 0, tile.position, 0};
    if (positions > 0 && leaves(tile.position, tile.count, positions)) {
      return {TableFault::kPositions, i, 0, tile.position + tile.count, positions};
    }
    return {};
  }
};

}  // namespace oscar::kernels
