// Masks over the keys that a block of queries sees, made on the device. Masks filled on the CPU and copied took longer
// than the attention of a GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace oscar {

// One range of keys [begin, end) per query; empty if end <= begin.
struct ColumnRanges {
  std::vector<std::int64_t> begin, end;  // [queries]
};

// [queries, columns] FP32 on the device: 1 if key `from + column` is in the query's range, else 0.
at::Tensor columns_within(const ColumnRanges& ranges, std::int64_t from, std::int64_t columns, at::Device device);

}  // namespace oscar
