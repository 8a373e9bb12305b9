// The BF16 windows of the sequences: pages [window pages, Hkv, 128 d] in the order of kernels/common/fragment_pages.h,
// and a table of each sequence's sink pages and ring pages.
#pragma once

#include "kernels/check/table_rules.h"
#include "kernels/common/fragment_pages.h"
#include "oscar_kv/csrc/arguments.h"

namespace oscar_kv {

inline void require_ring(const Arguments& arguments, std::int64_t ring_pages, std::int64_t tokens) {
  if (tokens > ring_pages * oscar::kPageTokens) {
    arguments.refuse("the ring of " + std::to_string(ring_pages) + " pages is too short for " + std::to_string(tokens) +
                     " tokens");
  }
}

// The window pages of a layer.
struct WindowPool {
  std::uint8_t* pages;
  std::int32_t count, kv_heads, sink_pages;

  WindowPool(const Arguments& arguments, const Tensor& windows, std::int64_t head_dim, std::int64_t sink)
      : pages(arguments.get<std::uint8_t>(
            windows, "windows", ScalarType::BFloat16,
            {kAny, kAny, oscar::kernels::window_page_bytes(static_cast<int>(head_dim)) / 2})),
        count(arguments.int32(windows.size(0), "window pages")),
        kv_heads(arguments.int32(windows.size(1), "KV heads")),
        sink_pages(arguments.int32((sink + oscar::kPageTokens - 1) / oscar::kPageTokens, "sink pages")) {}
};

// Those of sequences.
struct Windows : WindowPool {
  const std::int32_t* table;
  std::int32_t sequences, ring_pages;

  Windows(const Arguments& arguments, const WindowPool& pool, const Tensor& window_table)
      : WindowPool(pool),
        table(arguments.get<std::int32_t>(window_table, "window_table", ScalarType::Int, {kAny, kAny})),
        sequences(arguments.int32(window_table.size(0), "sequences")),
        ring_pages(arguments.int32(window_table.size(1), "window pages") - sink_pages) {
    if (ring_pages < 1) {
      arguments.refuse("window_table has " + std::to_string(window_table.size(1)) + " pages for a sequence, expected " +
                       std::to_string(sink_pages) + " of the sink and at least one of the ring");
    }
  }

  void require(const Arguments& arguments, std::int64_t batch) const {
    if (sequences != batch) {
      arguments.refuse("windows are of " + std::to_string(sequences) + " sequences, lengths of " +
                       std::to_string(batch));
    }
  }

  // What a check of tables asks of the windows; the caller adds the rest.
  oscar::kernels::StepTables step(const std::int32_t* lengths) const {
    oscar::kernels::StepTables made{};
    made.lengths = lengths, made.window_table = table, made.batch = sequences, made.window_pages = count;
    made.sink_pages = sink_pages, made.ring_pages = ring_pages;
    return made;
  }
};

}  // namespace oscar_kv
