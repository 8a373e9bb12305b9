#include "cache/row_loops.h"

#include <gtest/gtest.h>

#include <vector>

#include "codec/rows.h"
#include "layout/float16.h"
#include "support/bfloat16.h"

namespace oscar {
namespace {

TEST(RowRotation, IdentityRoundsToBfloat16) {
  std::vector<float> x(3 * 20);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = gaussian(1, i);
  std::vector<std::uint16_t> out(x.size());
  rotate_rows(x.data(), 3, 20, nullptr, nullptr, 20, out.data(), 20);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(bfloat16_value(out[i]), round_to_bfloat16(x[i]));
}

TEST(RowRotation, SumsInOrderWhateverTheBatch) {
  for (const int d : {20, 64, 80, 128}) {
    const auto size = static_cast<std::size_t>(d);
    std::vector<float> x(11 * size), matrix(size * size), mean(size);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = gaussian(1, i);
    for (std::size_t i = 0; i < matrix.size(); ++i) matrix[i] = gaussian(2, i);
    for (std::size_t i = 0; i < size; ++i) mean[i] = gaussian(3, i);
    std::vector<std::uint16_t> all(x.size()), one(size);
    rotate_rows(x.data(), 11, d, mean.data(), matrix.data(), d, all.data(), d);
    for (std::size_t r = 0; r < 11; ++r) {
      rotate_rows(x.data() + r * size, 1, d, mean.data(), matrix.data(), d, one.data(), d);
      for (std::size_t j = 0; j < size; ++j) {
        volatile float sum = 0.0f;  // volatile: each step is rounded to single precision
        for (std::size_t i = 0; i < size; ++i) {
          volatile float product = (x[r * size + i] - mean[i]) * matrix[i * size + j];
          sum = sum + product;
        }
        ASSERT_EQ(bfloat16_value(all[r * size + j]), round_to_bfloat16(sum));
        ASSERT_EQ(all[r * size + j], one[j]);
      }
    }
  }
}

}  // namespace
}  // namespace oscar
