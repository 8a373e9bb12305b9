#include "attention/column_range.h"

#include <ATen/ATen.h>

namespace oscar {

at::Tensor columns_within(const ColumnRanges& ranges, std::int64_t from, std::int64_t columns, at::Device device) {
  std::vector<std::int64_t> both = ranges.begin;  // together, for a single copy to the device
  both.insert(both.end(), ranges.end.begin(), ranges.end.end());
  const at::Tensor bounds = at::tensor(both, at::kLong).view({2, std::ssize(ranges.begin), 1}).to(device, at::kInt);
  const at::Tensor column = at::arange(from, from + columns, at::TensorOptions(at::kInt).device(device));
  return column.ge(bounds[0]).logical_and_(column.lt(bounds[1])).to(at::kFloat);
}

}  // namespace oscar
