#include "attention/prefill_core.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace oscar {
namespace {

void expect_ranges(at::Device device) {
  const ColumnRanges ranges{{0, 3, 5, 7, 2, 40}, {4, 3, 9, 5, 100, 50}};
  const std::int64_t from = 2, columns = 8;
  const at::Tensor mask = columns_within(ranges, from, columns, device).to(at::kCPU);
  ASSERT_EQ(mask.sizes(), (std::vector<std::int64_t>{6, 8}));
  ASSERT_EQ(mask.scalar_type(), at::kFloat);
  for (std::size_t row = 0; row < ranges.begin.size(); ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      const bool within = ranges.begin[row] <= from + column && from + column < ranges.end[row];
      EXPECT_EQ(mask[static_cast<std::int64_t>(row)][column].item<float>(), within ? 1.0f : 0.0f)
          << row << ' ' << column;
    }
  }
}

TEST(ColumnRange, IsOneInsideAndZeroOutside) { expect_ranges(at::kCPU); }

TEST(ColumnRange, IsTheSameOnAGpu) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
  expect_ranges(at::kCUDA);
}

}  // namespace
}  // namespace oscar
