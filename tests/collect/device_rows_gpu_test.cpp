// Rows and products of the kernels against those that ATen makes on the same GPU: the same bits.
#include "collect/device_sums.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/gpu.h"

namespace oscar {
namespace {

const at::Device kGpu(at::kCUDA, 0);

// [T, H, d] of any float type -> [H / g, T g, d] FP32.
at::Tensor by_kv_head(const at::Tensor& x, std::int64_t kv_heads) {
  const std::int64_t g = x.size(1) / kv_heads, d = x.size(2);
  return x.to(at::kFloat).view({x.size(0), kv_heads, g, d}).permute({1, 0, 2, 3}).reshape({kv_heads, -1, d});
}

struct Problem {
  at::Tensor x;
  Unrotation::Rows rows;
};

Problem problem(std::int64_t tokens, std::int64_t heads, std::int64_t d, std::int64_t pairs) {
  at::manual_seed(3);
  const at::Tensor angles = at::randn({tokens, pairs}) * 3.0;
  return {at::randn({tokens, heads, d}).to(at::kBFloat16).to(kGpu), {angles.cos().to(kGpu), angles.sin().to(kGpu)}};
}

TEST(DeviceRows, HaveTheBitsOfSeparateOperations) {
  OSCAR_NEEDS_GPU();
  for (const auto& [heads, d, pairs] :
       {std::tuple<std::int64_t, std::int64_t, std::int64_t>{8, 128, 64}, {4, 64, 16}}) {
    const std::int64_t tokens = 333, kv_heads = 2, g = heads / kv_heads;
    const Problem p = problem(tokens, heads, d, pairs);
    EXPECT_TRUE(at::equal(device_rows(p.x, kv_heads), by_kv_head(p.x, kv_heads)));
    const at::Tensor before = undo_rope(p.x, p.rows.cos.unsqueeze(1), p.rows.sin.unsqueeze(1));
    EXPECT_TRUE(at::equal(device_rows_before(p.x, kv_heads, p.rows), by_kv_head(before, kv_heads)));

    const at::Tensor by_head = p.x.to(at::kFloat).transpose(0, 1).contiguous();  // [H, T, d]
    EXPECT_TRUE(at::equal(device_head_rows(p.x), by_head));
    EXPECT_TRUE(at::equal(device_head_rows(p.x, 3), by_head.repeat_interleave(3, 0)));
    const at::Tensor weights = at::rand({heads, tokens + 5}, p.rows.cos.options()).narrow(1, 2, tokens);
    const at::Tensor weighted = by_head * weights.sqrt().unsqueeze(-1);
    EXPECT_TRUE(at::equal(device_weighted_rows(p.x, weights), weighted));
    const at::Tensor both = device_far_rows(p.x, kv_heads, weights, p.rows);
    EXPECT_TRUE(at::equal(both[0], weighted.view({kv_heads, g * tokens, d})));
    EXPECT_TRUE(at::equal(both[1], undo_rope(weighted, p.rows.cos, p.rows.sin).view({kv_heads, g * tokens, d})));
  }
}

TEST(DeviceRows, LeaveToOthersWhatTheyDoNotTake) {
  OSCAR_NEEDS_GPU();
  const Problem p = problem(5, 2, 64, 16);
  EXPECT_FALSE(device_rows(p.x.to(at::kFloat), 2).defined());
  EXPECT_FALSE(device_rows(p.x.cpu(), 2).defined());
  EXPECT_FALSE(device_rows(p.x.transpose(0, 1), 5).defined());
  const Unrotation::Rows few{p.rows.cos.narrow(1, 0, 3), p.rows.sin.narrow(1, 0, 3)};
  EXPECT_FALSE(device_rows_before(p.x, 2, few).defined());
}

TEST(OrderedGram, HasTheBitsOfBlocksOfBmm) {
  OSCAR_NEEDS_GPU();
  constexpr std::int64_t kBlock = 256;
  for (const std::int64_t d : {64, 128}) {
    for (const std::int64_t rows : {1, 200, 256, 4000, 16000, 16384}) {
      at::manual_seed(5);
      const at::Tensor x = at::randn({2, rows, d}).to(kGpu);
      at::Tensor sum = at::rand({2, d, d}, x.options().dtype(at::kDouble)), expected = sum.clone();
      const std::int64_t blocks = rows / kBlock;
      at::Tensor gram = at::zeros_like(sum);
      if (blocks > 0) {
        const at::Tensor part = x.narrow(1, 0, blocks * kBlock).reshape({2 * blocks, kBlock, d});
        gram.add_(at::bmm(part.transpose(1, 2), part).view({2, blocks, d, d}).sum(1, false, at::kDouble));
      }
      if (rows > blocks * kBlock) {
        const at::Tensor rest = x.narrow(1, blocks * kBlock, rows - blocks * kBlock);
        gram.add_(at::bmm(rest.transpose(1, 2), rest));
      }
      expected.add_(gram);
      ASSERT_TRUE(device_ordered_gram(sum, x, kBlock));
      EXPECT_TRUE(at::equal(sum, expected)) << d << ", " << rows;
      EXPECT_TRUE(at::equal(device_long_grams({x, x})[1], at::bmm(x.transpose(1, 2), x))) << d << ", " << rows;
    }
  }
}

}  // namespace
}  // namespace oscar
