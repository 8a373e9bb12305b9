// Sums of one layer from those of several parts.
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

// Added up in the order of the parts, so that the same parts give the same bits. rows: none, or those of the sample.
LayerMoments merge_layer(const LayerParts& parts, const std::vector<RowSource>& rows);

// The sum; undefined where one of the tensors is.
at::Tensor sum_if_all(const std::vector<at::Tensor>& tensors);

}  // namespace oscar
