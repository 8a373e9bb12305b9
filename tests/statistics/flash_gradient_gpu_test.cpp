// The backward pass of flash attention on a GPU against the one that is written out, in FP32 on the same BF16 rows.
#include "statistics/flash_gradient.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "support/gpu.h"

namespace oscar {
namespace {

struct FlashCase {
  std::vector<std::int64_t> lengths{700};
  std::int64_t heads = 8, kv_heads = 2, d = 128, window = 0;
  FarPairs pairs{16, 100, true};
};

AttentionInput input_of(const FlashCase& c, SequenceBatch& batch) {
  at::manual_seed(3);
  for (const std::int64_t length : c.lengths) {
    batch.ids.push_back(std::ssize(batch.ids));
    batch.lengths.push_back(length);
    batch.starts.push_back(0);
  }
  const std::int64_t tokens = batch.tokens();
  const auto options = at::TensorOptions(at::kBFloat16).device(at::kCUDA);
  AttentionInput input;
  input.batch = &batch;
  input.q = at::randn({tokens, c.heads, c.d}, options) * 1.5;
  input.k = at::randn({tokens, c.kv_heads, c.d}, options) + 0.5;
  input.v = at::randn({tokens, c.kv_heads, c.d}, options);
  input.scale = 1.0 / std::sqrt(static_cast<double>(c.d));
  input.sliding_window = c.window;
  return input;
}

void expect_near(const at::Tensor& found, const at::Tensor& expected, const char* name) {
  ASSERT_EQ(found.sizes(), expected.sizes()) << name;
  const double size = expected.norm().item<double>(), error = (found.to(at::kFloat) - expected).norm().item<double>();
  EXPECT_LT(error, 0.01 * size + 1e-6) << name;
}

void compare(const FlashCase& c) {
  OSCAR_NEEDS_GPU();
  SequenceBatch batch;
  const AttentionInput input = input_of(c, batch);
  ASSERT_TRUE(flash_gradient_runs(input, c.pairs));
  EXPECT_FALSE(flash_gradient_runs(input, {16, 0, true}));
  const FlashOutput output = flash_output(input);
  const at::Tensor gradient = at::randn_like(input.q);
  const AttentionGradient found = flash_gradient(input, output, gradient, c.pairs);
  AttentionInput wide = input;
  wide.q = input.q.to(at::kFloat), wide.k = input.k.to(at::kFloat), wide.v = input.v.to(at::kFloat);
  FullAttention full;
  const at::Tensor exact = full.attend(wide);
  expect_near(output.out, exact, "output");
  const AttentionGradient expected = attention_gradient(wide, exact, gradient, c.pairs);
  expect_near(found.q, expected.q, "q");
  expect_near(found.k, expected.k, "k");
  expect_near(found.v, expected.v, "v");
  expect_near(found.far_k, expected.far_k, "far k");
  expect_near(found.far_v, expected.far_v, "far v");
  // Rows that no far pair has are exactly zero, and a second run gives the same bits.
  EXPECT_TRUE(found.far_k.masked_select(expected.far_k == 0.0).eq(0.0).all().item<bool>());
  const AttentionGradient again = flash_gradient(input, output, gradient, c.pairs);
  EXPECT_TRUE(again.q.equal(found.q) && again.far_k.equal(found.far_k) && again.v.equal(found.v));
}

TEST(FlashGradientGpu, OneSequence) { compare({}); }
TEST(FlashGradientGpu, PackedSequences) { compare({.lengths = {5, 300, 1, 100, 101, 640, 117}}); }
TEST(FlashGradientGpu, NoFarPairs) { compare({.lengths = {90, 60}}); }
TEST(FlashGradientGpu, NoSink) { compare({.lengths = {300, 200}, .pairs = {0, 1, true}}); }
TEST(FlashGradientGpu, SlidingWindow) { compare({.lengths = {500, 320}, .window = 220}); }
TEST(FlashGradientGpu, WindowAsLongAsTheRecentOne) { compare({.lengths = {500}, .window = 100}); }
TEST(FlashGradientGpu, SmallHeads) { compare({.lengths = {400, 230}, .heads = 4, .kv_heads = 4, .d = 64}); }
TEST(FlashGradientGpu, LargeHeads) { compare({.lengths = {400, 230}, .heads = 4, .kv_heads = 1, .d = 256}); }

}  // namespace
}  // namespace oscar
