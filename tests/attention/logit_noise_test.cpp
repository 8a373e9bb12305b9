// The correction of logits for the errors of coded keys against what those errors do.
#include "attention/logit_noise.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "attention/reconstruction.h"
#include "attention/scenario.h"

namespace oscar {
namespace {

constexpr std::int64_t kDim = 8;

// A method of one KV head that codes every token but the last, in groups of 4 channels.
Scenario small(const CacheWindows& windows = {0, 1, 1}) {
  Scenario s = make_scenario(kDim, 1, 1, Basis::kIdentity, windows, uniform_code(kDim, 4));
  s.method.logit_correction = true;
  return s;
}

// ln E exp(q e) for e spread evenly over a step, by the midpoint rule.
double log_inflation(double q, double step) {
  constexpr int kPoints = 20000;
  double sum = 0;
  for (int i = 0; i < kPoints; ++i) sum += std::exp(q * step * ((i + 0.5) / kPoints - 0.5));
  return std::log(sum / kPoints);
}

// The correction of each key for each query, [queries, keys].
at::Tensor corrections(const Scenario& s, const at::Tensor& q, const CachedRows& keys, double scale) {
  const at::Tensor x = noise_queries(s.method, 0, q, keys.noise.size(2), scale).select(1, 0) * scale;
  return at::mm(x, keys.noise[0].t());
}

TEST(LogitNoise, IsTheExpectedInflationOfAKeyOfKnownSteps) {
  const Scenario s = small();
  // Group 0 has levels 0 to 3, step 1; group 1 has levels -1 to 5, step 2. The second token stays in BF16.
  const at::Tensor k = at::tensor({0.0f, 1.2f, 2.0f, 3.0f, -1.0f, 0.0f, 2.0f, 5.0f}).repeat({2, 1}).view({2, 1, kDim});
  const at::Tensor q = at::tensor({0.4f, -0.3f, 0.2f, 0.5f, 0.1f, -0.2f, 0.3f, 0.0f}).view({1, 1, kDim});
  const CachedRows keys = decoded_rows(s.method, 0, Side::kKey, k);
  ASSERT_EQ(keys.noise.sizes(), (at::IntArrayRef{1, 2, 2}));
  EXPECT_NEAR(keys.noise[0][0][0].item<double>(), 1.0 / 12, 1e-6);
  EXPECT_NEAR(keys.noise[0][0][1].item<double>(), 4.0 / 12, 1e-6);
  const double scale = 0.8;
  double expected = 0;
  for (std::int64_t c = 0; c < kDim; ++c) {
    expected += log_inflation(scale * q[0][0][c].item<double>(), c < 4 ? 1.0 : 2.0);
  }
  const at::Tensor correction = corrections(s, q, keys, scale);
  EXPECT_GT(expected, 0.02);
  EXPECT_NEAR(correction[0][0].item<double>(), -expected, 0.01 * expected);
  EXPECT_EQ(correction[0][1].item<double>(), 0.0) << "a row in BF16 has no noise";
}

TEST(LogitNoise, KeysAndQueriesMadeLongerCarryIt) {
  const Scenario s = small();
  const at::Tensor k = normal(1, {5, 1, kDim}), q = normal(2, {3, 1, kDim});
  CachedRows keys = decoded_rows(s.method, 0, Side::kKey, k);
  const at::Tensor plain = at::mm(q.select(1, 0), keys.coded[0].t()) * 0.5, less = corrections(s, q, keys, 0.5);
  const at::Tensor longer = at::cat({q, noise_queries(s.method, 0, q, keys.noise.size(2), 0.5)}, 2).select(1, 0) * 0.5;
  add_noise(keys);
  EXPECT_TRUE(at::allclose(at::mm(longer, keys.coded[0].t()), plain + less, 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(at::mm(longer, keys.plain[0].t()),
                           at::mm(q.select(1, 0) * 0.5, k.select(1, 0).to(at::kBFloat16).to(at::kFloat).t()), 1e-5,
                           1e-6));
}

TEST(LogitNoise, RowsInBf16ReadTheSameWithAndWithout) {
  Scenario s = small({4, 60, 1});
  Call call = make_call(s, {64, 20}, 3);
  call.input.batch = &call.batch;
  SimulatedPrefillAttention corrected(s.method);
  const at::Tensor with = corrected.attend(call.input);
  Scenario off = s;
  off.method.logit_correction = false;
  SimulatedPrefillAttention plain(off.method);
  EXPECT_TRUE(at::allclose(with, plain.attend(call.input), 1e-6, 1e-7));
}

ModelConfig model_of(std::int64_t heads, std::int64_t d) {
  ModelConfig m;
  m.layers = 8, m.kv_heads = heads, m.query_heads = heads, m.head_dim = d;
  m.rope.theta = 10000.0, m.max_position = 4096;
  return m;
}

// Steps of the methods of other papers: the variance that the scales tell is that of the errors, up to the factor by
// which errors of few levels are not spread evenly.
TEST(LogitNoise, VariancesOfOtherMethodsAreThoseOfTheirErrors) {
  const ModelConfig model = model_of(4, 64);
  const at::Tensor rows = normal(4, {512, 4, 64}) * (normal(5, {1, 4, 64}) * 0.5).exp();
  for (const char* id : {"fp8", "q8_0", "q4_0", "q4_0-rot", "saw4", "quarot2", "kivi2", "kivi2-g128", "kitty2",
                         "oscar-tns", "kvarn2", "rotatekv2"}) {
    const KvMethod method = make_method(id, model, nullptr, {});
    const CodedRows read = method.coder->code(method, 0, Side::kKey, rows, true);
    const at::Tensor& variance = read.variance;
    ASSERT_TRUE(variance.defined()) << id;
    const std::int64_t begin = method.windows.sink;
    const at::Tensor error = method.coder->code_basis(0, read.rows - rows).narrow(0, begin, 256);
    const std::int64_t runs = variance.size(2);
    const at::Tensor measured = error.reshape({256, 4, runs, 64 / runs}).square().mean(3);
    const double told = variance.narrow(0, begin, 256).mean().item<double>(), is = measured.mean().item<double>();
    EXPECT_GT(told, 0.6 * is) << id;
    EXPECT_LT(told, 1.7 * is) << id;
    // Channel by channel and head by head, too: they differ by their size.
    const at::Tensor by_run = variance.narrow(0, begin, 256).mean(0).flatten(), of_run = measured.mean(0).flatten();
    EXPECT_LT((by_run / of_run).max().item<double>(), 3.0) << id;
    EXPECT_GT((by_run / of_run).min().item<double>(), 0.3) << id;
  }
}

}  // namespace
}  // namespace oscar
