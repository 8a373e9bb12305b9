// Masks over the keys that a block of queries sees, made where they are used: filled on the CPU and copied, they took
// longer than the attention of a GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace oscar {

// One range of keys [begin, end) for each query; empty where end <= begin.
struct ColumnRanges {
  std::vector<std::int64_t> begin, end;  // [queries]
};

// [queries, columns] FP32 on the device: 1 where key `from + column` lies in the query's range, 0 elsewhere.
at::Tensor columns_within(const ColumnRanges& ranges, std::int64_t from, std::int64_t columns, at::Device device);

}  // namespace oscar
