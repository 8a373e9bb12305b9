// The sampled rows of one layer in the form that prediction and clip search read.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "statistics/statistics.h"

namespace oscar {

// N tokens as one small attention problem. FP32, contiguous.
struct RowSet {
  at::Tensor q;            // [Hkv, N g, d] queries of each KV head's group, a token's g queries one after another
  at::Tensor k;            // [Hkv, N, d]
  at::Tensor v;            // [Hkv, N, d]
  at::Tensor rope_phases;  // [N, d] of the tokens' positions where the statistics have them; else undefined
  std::int64_t tokens() const { return k.defined() ? k.size(1) : 0; }
};

struct LayerRows {
  RowSet fit;       // what a search may look at
  RowSet held_out;  // what decides
};

// Tokens in the order of their (random) priority, alternately to one half and the other, so that the halves are
// disjoint random samples. Tokens of the first `sink` positions are left out: they are never quantized. At most
// max_rows tokens are taken. Fewer than two usable tokens give empty halves.
LayerRows split_rows(const Statistics& statistics, std::size_t layer, std::int64_t sink, std::int64_t max_rows);

}  // namespace oscar
