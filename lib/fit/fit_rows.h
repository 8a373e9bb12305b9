// The sampled rows of one layer in the form for prediction and clip search.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "bundle/bundle.h"
#include "statistics/statistics.h"

namespace oscar {

// N tokens as one small attention problem. FP32, contiguous.
struct RowSet {
  at::Tensor q;            // [Hkv, N g, d] queries of each KV head's group, token by token
  at::Tensor k;            // [Hkv, N, d]
  at::Tensor v;            // [Hkv, N, d]
  at::Tensor rope_phases;  // [N, d] of the tokens' positions if the statistics have them; else undefined
  std::int64_t tokens() const { return k.defined() ? k.size(1) : 0; }
};

struct LayerRows {
  RowSet fit;       // rows that the search may use
  RowSet held_out;  // rows that decide
};

// Splits tokens in the order of their (random) priority alternately into two halves, which are then disjoint random
// samples. Tokens of the first `sink` positions are omitted, since they are never quantized. Uses at most max_rows
// tokens. Fewer than two usable tokens give empty halves.
LayerRows split_rows(const Statistics& statistics, std::size_t layer, std::int64_t sink, std::int64_t max_rows);

// Rows of the statistics that a bundle carries for the self-check of engines (CheckRows in bundle/bundle.h).

inline constexpr std::int64_t kMostCheckRows = 192;          // three pages of 64 tokens
inline constexpr std::int64_t kCheckQueries = 8;             // of the newest rows
inline constexpr std::int64_t kMostCheckBytes = 32'000'000;  // of all layers

// The first tokens of the row sample, in the order of their positions: as many as fit into the bytes. Like the sample,
// they depend only on the seed and the prompts. Empty if the statistics hold no rows.
CheckRows check_rows_of(const Statistics& statistics);

}  // namespace oscar
