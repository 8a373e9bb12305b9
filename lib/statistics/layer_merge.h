// Merges the sums of one layer from several parts.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "statistics/statistics.h"

namespace oscar {

using LayerParts = std::vector<const LayerMoments*>;  // the same layer of each part

struct RowSource {
  std::size_t part;
  std::int64_t row;
};

// The union of bottom-k samples, cut to the smallest k, is the bottom-k sample of all tokens.
std::vector<RowSource> merged_rows(const LayerParts& parts, std::int64_t requested);

// Adds up in the order of the parts, so the same parts give the same bits. rows: empty, or the rows of the merged
// sample.
LayerMoments merge_layer(const LayerParts& parts, const std::vector<RowSource>& rows);

// The sum; undefined if one of the tensors is undefined.
at::Tensor sum_if_all(const std::vector<at::Tensor>& tensors);

}  // namespace oscar
