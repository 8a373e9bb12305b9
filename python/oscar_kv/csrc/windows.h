// The BF16 windows of sequences: pages [window pages, Hkv, 128 d] in the order of kernels/common/fragment_pages.h, and
// a table of each sequence's sink pages and ring pages.
#pragma once

#include "kernels/common/fragment_pages.h"
#include "oscar_kv/csrc/arguments.h"

namespace oscar_kv {

inline std::uint8_t* windows_of(const Arguments& arguments, const Tensor& windows, std::int64_t kv_heads,
                                std::int64_t d) {
  return arguments.get<std::uint8_t>(windows, "windows", ScalarType::BFloat16,
                                     {kAny, kv_heads, oscar::kernels::window_page_bytes(static_cast<int>(d)) / 2});
}

// The window pages of sequences; kAny: of any number of them.
struct WindowTable {
  const std::int32_t* window_table;
  std::int32_t sink, sink_pages, ring_pages;

  WindowTable(const Arguments& arguments, const Tensor& table, std::int64_t sequences, std::int64_t sink_tokens)
      : window_table(arguments.get<std::int32_t>(table, "window_table", ScalarType::Int, {sequences, kAny})),
        sink(arguments.int32(sink_tokens, "sink")),
        sink_pages((sink + oscar::kPageTokens - 1) / oscar::kPageTokens),
        ring_pages(arguments.int32(table.size(1), "window pages") - sink_pages) {
    if (ring_pages < 1) {
      arguments.refuse("window_table has " + std::to_string(table.size(1)) + " pages for a sequence, expected " +
                       std::to_string(sink_pages) + " of the sink and at least one of the ring");
    }
  }
  // Refuses a ring that does not hold the last tokens.
  void require_recent(const Arguments& arguments, std::int64_t tokens) const {
    if (tokens <= std::int64_t{ring_pages} * oscar::kPageTokens) return;
    arguments.refuse("the ring of " + std::to_string(ring_pages) + " pages is too short for " + std::to_string(tokens) +
                     " tokens");
  }
  template <class Params>
  void put(Params& p) const {
    p.window_table = window_table, p.sink = sink, p.sink_pages = sink_pages, p.ring_pages = ring_pages;
  }
};

// The sequences of a step.
struct Sequences : WindowTable {
  const std::int32_t* lengths;
  std::int32_t count;

  Sequences(const Arguments& arguments, const Tensor& lengths_tensor, const Tensor& table, std::int64_t sink_tokens)
      : WindowTable(arguments, table, lengths_tensor.dim() == 1 ? lengths_tensor.size(0) : kAny, sink_tokens),
        lengths(arguments.get<std::int32_t>(lengths_tensor, "lengths", ScalarType::Int, {kAny})),
        count(arguments.int32(lengths_tensor.size(0), "sequences")) {}

  template <class Params>
  void put(Params& p) const {
    WindowTable::put(p);
    p.lengths = lengths;
  }
  // And their pages [B, P].
  template <class Params>
  void put_pages(const Arguments& arguments, const Tensor& table, Params& p) const {
    p.lengths = lengths, p.batch = count;
    p.page_table = arguments.get<std::int32_t>(table, "table", ScalarType::Int, {count, kAny});
    p.max_pages = arguments.int32(table.size(1), "pages of a sequence");
  }
};

}  // namespace oscar_kv
