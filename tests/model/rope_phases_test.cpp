#include "model/rope_phases.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace oscar {
namespace {

RopeFrequencies frequencies(double factor) {
  RopeFrequencies f = rope_frequencies(RopeConfig{}, 16, 4096);
  f.attention_factor = factor;
  return f;
}

// What the model's own RoPE makes of a vector that is the same at every position.
TEST(RopePhases, RotatedMeansAreRopeOfTheMean) {
  at::manual_seed(1);
  const at::Tensor mean = at::randn({3, 16});
  for (const double factor : {1.0, 1.3}) {
    const RopeFrequencies f = frequencies(factor);
    const SequenceBatch batch{{0}, {6}, {1000}};
    const at::Tensor same = mean.unsqueeze(0).expand({6, 3, 16}).contiguous();
    const at::Tensor expected = apply_rope(same, rope_table(f, batch, at::kFloat, at::kCPU));
    const at::Tensor rope_phases = phase_rows(f, {1000, 1001, 1002, 1003, 1004, 1005});
    EXPECT_TRUE(at::allclose(rotated_means(mean, rope_phases), expected, 1e-5, 1e-5));
    const at::Tensor q = at::randn({6, 6, 16}), u = phase_queries(q, mean);
    const at::Tensor dots = (q * expected.repeat_interleave(2, 1)).sum(-1);  // [6, 6]
    EXPECT_TRUE(at::allclose((u * rope_phases.unsqueeze(1)).sum(-1), dots, 1e-4, 1e-4));
  }
}

TEST(RopePhases, RowsDoNotDependOnHowTheyAreAskedFor) {
  const RopePhases grown(frequencies(1.0)), whole(frequencies(1.0));
  for (const std::int64_t n : {1, 2, 5, 70, 71}) grown.rows(n - 1, 1);
  const at::Tensor a = grown.rows(0, 71), b = whole.rows(0, 71);
  EXPECT_TRUE(at::equal(a, b));
  EXPECT_TRUE(at::equal(whole.rows(33, 4), phase_rows(frequencies(1.0), {33, 34, 35, 36})));
  EXPECT_TRUE(at::equal(a[0].narrow(0, 0, 8), at::ones({8})));
}

}  // namespace
}  // namespace oscar
