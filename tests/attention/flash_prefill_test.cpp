// Flash attention over the tiers of a cache against attend_cached(), which multiplies in FP32 and masks.
#include "attention/fast_prefill.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "attention/scenario.h"
#include "support/gpu.h"

namespace oscar {
namespace {

// Softmax of logits [T, H, K] over columns [begin, end) alone, times values [H, K, d].
AttentionPart part_of(const at::Tensor& logits, const at::Tensor& values, std::int64_t begin, std::int64_t end) {
  const at::Tensor some = logits.narrow(2, begin, end - begin);
  const at::Tensor out = at::matmul(at::softmax(some, -1).transpose(0, 1), values.narrow(1, begin, end - begin));
  return {out.transpose(0, 1), at::logsumexp(some, {-1})};
}

TEST(FlashPrefill, PartsAddUpToTheSoftmaxOverAllKeys) {
  const at::Tensor values = normal(2, {3, 40, 8});
  for (const double size : {1.0, 30.0}) {  // of logits: parts that weigh alike, and parts that weigh next to nothing
    const at::Tensor logits = normal(1, {9000, 3, 40}) * size;  // more queries than are merged at once
    const AttentionPart whole = part_of(logits, values, 0, 40);
    const at::Tensor merged =
        merge_parts({part_of(logits, values, 0, 7), part_of(logits, values, 7, 8), part_of(logits, values, 8, 40)});
    EXPECT_LT((merged - whole.out).abs().max().item<float>(), 2e-6 * size) << size;  // as exact as the sums
    const at::Tensor without = merge_parts({part_of(logits, values, 0, 7), part_of(logits, values, 8, 40)});
    EXPECT_GT((without - whole.out).abs().max().item<float>(), 1e-2) << size;
    EXPECT_TRUE(at::equal(merge_parts({whole}), whole.out));
  }
}

struct Rows {
  CachedRows keys, values;
};

Rows rows_of(std::int64_t tokens, std::int64_t d, const CacheWindows& windows, at::Device device) {
  const auto bf16 = [&](std::uint64_t seed) {
    return normal(seed, {2, tokens, d}).to(at::kBFloat16).to(at::kFloat).to(device);
  };
  return {{bf16(1), bf16(2), windows}, {bf16(3), bf16(4), windows}};
}

AttentionInput input_of(std::int64_t tokens, std::int64_t d, at::Device device) {
  AttentionInput input;
  input.q = normal(5, {tokens, 6, d}).to(device, at::kBFloat16);
  input.scale = 1.0 / std::sqrt(static_cast<double>(d));
  return input;
}

TEST(FlashPrefill, RunsWhereTiersAreCausalRuns) {
  const Rows rows = rows_of(20, 64, {4, 8, 1}, at::kCPU);
  EXPECT_FALSE(flash_prefill_runs(input_of(20, 64, at::kCPU), rows.keys, rows.values)) << "not on the CPU";
  OSCAR_NEEDS_GPU();
  const at::Device gpu(at::kCUDA, 0);
  const AttentionInput input = input_of(300, 64, gpu);
  Rows device = rows_of(300, 64, {16, 32, 1}, gpu);
  EXPECT_TRUE(flash_prefill_runs(input, device.keys, device.values));
  const auto refused = [&](auto&& change) {
    AttentionInput other = input;
    Rows changed = device;
    change(other, changed);
    return !flash_prefill_runs(other, changed.keys, changed.values);
  };
  EXPECT_TRUE(refused([](AttentionInput& i, Rows&) { i.q = i.q.to(at::kFloat); }));
  EXPECT_TRUE(refused([](AttentionInput& i, Rows&) { i.sliding_window = 40; }));
  EXPECT_TRUE(refused([](AttentionInput& i, Rows&) { i.soft_cap = 20.0; }));
  EXPECT_TRUE(refused([](AttentionInput& i, Rows&) { i.sinks = at::zeros({6}); }));
  EXPECT_TRUE(refused([](AttentionInput&, Rows& r) { r.keys.windows.flush = 8; }));
  EXPECT_TRUE(refused([](AttentionInput&, Rows& r) { r.values.windows.sink = 0; }));

  for (const std::int64_t d : {64, 128}) {
    for (const CacheWindows& windows : {CacheWindows{16, 32, 1}, CacheWindows{0, 1, 1}, CacheWindows{64, 256, 1}}) {
      for (const std::int64_t tokens : {1, 10, 48, 49, 50, 321, 1500, 9000}) {  // from 8192 on by cuDNN
        for (const std::string coded : {"both", "keys", "values", "none"}) {
          Rows rows = rows_of(tokens, d, windows, gpu);
          if (coded == "values" || coded == "none") rows.keys.coded = at::Tensor();
          if (coded == "keys" || coded == "none") rows.values.coded = at::Tensor();
          const AttentionInput in = input_of(tokens, d, gpu);
          ASSERT_TRUE(flash_prefill_runs(in, rows.keys, rows.values));
          const at::Tensor q = in.q.to(at::kFloat);
          const at::Tensor expected = attend_cached(in, q, rows.keys, rows.values, {}, {}),
                           found = attend_flash(in, q, rows.keys, rows.values);
          const double norm = expected.norm().item<double>();
          const at::Tensor apart = (found - expected).norm(2, {1, 2});  // of each query
          EXPECT_LT((found - expected).norm().item<double>(), 5e-3 * norm)
              << coded << ' ' << tokens << " tokens, d " << d << ", windows " << windows.sink << ',' << windows.recent;
          EXPECT_LT((apart / expected.norm(2, {1, 2})).max().item<double>(), 2e-2);
          EXPECT_TRUE(at::equal(attend_flash(in, q, rows.keys, rows.values), found));
        }
      }
    }
  }
}

}  // namespace
}  // namespace oscar
