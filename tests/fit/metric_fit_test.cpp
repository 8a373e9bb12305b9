// Fits of methods balanced and waterfill, on rows that real models have and rows that should never occur.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/errors.h"
#include "codec/codec.h"
#include "fit/fit.h"
#include "fit/made_statistics.h"
#include "support/metric_fit_options.h"

namespace oscar {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

double largest(const at::Tensor& t) { return t.abs().max().item<double>(); }

// Forward and inverse cancel, logits and values of the rows survive the transform, everything is finite.
void expect_sound(const FitResult& result, const std::vector<MadeRows>& layers) {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LayerTransform& t = result.layers[i].transform;
    for (const SideTransform* side : {&t.key, &t.value}) {
      EXPECT_TRUE(at::isfinite(side->forward).all().item<bool>());
      const at::Tensor& back = side->back(side == &t.key ? Side::kKey : Side::kValue);
      EXPECT_TRUE(at::isfinite(back).all().item<bool>());
      EXPECT_TRUE(at::isfinite(side->mean).all().item<bool>());
    }
    const std::int64_t heads = t.kv_heads, d = t.head_dim;
    const auto eye = at::eye(d, at::kDouble);
    const auto wide = [](const at::Tensor& x) { return x.to(at::kDouble); };
    EXPECT_LT(largest(at::matmul(wide(t.key.forward).transpose(1, 2), wide(t.key.query_side)) - eye), 1e-4);
    EXPECT_LT(largest(at::matmul(wide(t.value.inverse), wide(t.value.forward)) - eye), 1e-4);
    for (std::int64_t h = 0; h < heads; ++h) {
      const auto of = [h](const at::Tensor& m) { return m[m.size(0) == 1 ? 0 : h]; };
      const std::int64_t group = layers[i].q.size(1) / heads;
      const at::Tensor q = wide(layers[i].q.select(1, h * group)), k = wide(layers[i].k.select(1, h));
      const at::Tensor centered = k - wide(t.key.mean[h]);
      const at::Tensor exact = at::matmul(q, centered.t());
      // FP32, and the BF16 rounding of the cache against that of untransformed (centered) keys.
      const at::Tensor stored = at::matmul(centered.to(at::kFloat), of(t.key.forward));
      const at::Tensor query = at::matmul(q.to(at::kFloat), of(t.key.query_side));
      EXPECT_LT(largest(wide(at::matmul(query, stored.t())) - exact), 1e-4 * (largest(exact) + 1e-30));
      const at::Tensor rounded = wide(at::matmul(query, stored.to(at::kBFloat16).to(at::kFloat).t()));
      const at::Tensor plain = at::matmul(q, wide(centered.to(at::kBFloat16)).t());
      EXPECT_LE((rounded - exact).norm().item<double>(), 4.0 * (plain - exact).norm().item<double>() + 1e-12);
    }
  }
}

TEST(MetricFit, RandomRows) {
  at::manual_seed(1);
  const std::vector<MadeRows> layers = {random_made_rows(2000, 4, 2, 64), random_made_rows(2000, 4, 2, 64)};
  const Statistics s = made_statistics(layers);
  for (const char* method : {"balanced", "waterfill"}) {
    const FitResult result = fit(s, metric_fit_options(method));
    expect_sound(result, layers);
    EXPECT_FALSE(result.far);
    EXPECT_THAT(result.warnings, Contains(HasSubstr("no metrics of query-key pairs outside the windows")));
    double share = 0.0;
    for (const LayerFit& layer : result.layers) {
      share += layer.key_spectrum.share + layer.value_spectrum.share;
      EXPECT_EQ(layer.transform.key.blocks(), std::string(method) == "waterfill");
      EXPECT_GE(layer.key_spectrum.gain, 1.0);
      EXPECT_LT(layer.key_spectrum.condition, 1e3);
    }
    EXPECT_NEAR(share, 1.0, 1e-9);
  }
}

// The fitted transform gives every block unit variance, in every head.
TEST(MetricFit, WaterfillBlocksHaveUnitVariance) {
  at::manual_seed(2);
  const std::vector<MadeRows> layers = {random_made_rows(4000, 4, 2, 64)};
  const FitResult result = fit(made_statistics(layers), metric_fit_options("waterfill"));
  const SideTransform& key = result.layers[0].transform.key;
  for (std::int64_t h = 0; h < 2; ++h) {
    const at::Tensor x = at::matmul(layers[0].k.select(1, h) - key.mean[h], key.forward[h]);
    const at::Tensor variance = x.square().mean(0).view({4, 16}).mean(1);
    EXPECT_LT(largest(variance - 1.0), 0.05);
  }
}

// Rows of a tenth and of four times their usual size are read with the relative error of usual ones. With scales
// counted from the deviation itself, small rows of 4-bit blocks are read several times as large as they are.
TEST(MetricFit, ScaleBytesReachSmallAndLargeRows) {
  at::manual_seed(2);
  const std::vector<MadeRows> layers = {random_made_rows(4000, 4, 2, 64)};
  FitOptions o = metric_fit_options("waterfill");
  o.key_profiles = o.value_profiles = {{4, 4, 2, 1}};
  const SideTransform value = fit(made_statistics(layers), o).layers[0].transform.value;
  RowCodec codec;
  codec.code = value.code(64, 0), codec.side = Side::kValue, codec.encoder = Encoder::kSearch;
  std::copy_n(value.sigma[0].const_data_ptr<float>(), kBands, codec.sigma.begin());
  const at::Tensor rows =
      at::matmul(layers[0].v.select(1, 0) - value.mean[0], value.forward[0]).to(at::kFloat).contiguous();
  const auto errors = [&](double size) {  // [4], of each block, over the rows' own squares
    const at::Tensor x = rows * size, read = at::empty_like(x);
    quantize_rows(codec, x.const_data_ptr<float>(), x.size(0), 0, read.mutable_data_ptr<float>(), 0);
    const auto blocks = [](const at::Tensor& t) { return t.square().view({-1, 4, 16}).mean(2).mean(0); };
    return blocks(read - x) / blocks(x);
  };
  const at::Tensor usual = errors(1.0);
  EXPECT_LT(usual[0].item<float>(), 0.02f);
  EXPECT_LT(usual[3].item<float>(), 0.45f);
  for (const double size : {0.1, 4.0}) EXPECT_LT(largest(errors(size) / usual - 1.0), 0.1) << size;
}

TEST(MetricFit, KeyBiasesHundredsOfTimesTheSignal) {
  at::manual_seed(3);
  std::vector<MadeRows> layers = {random_made_rows(3000, 4, 2, 64)};
  const FitResult without = fit(made_statistics(layers), metric_fit_options("balanced"));
  layers[0].k = layers[0].k + 300.0 * at::randn({1, 2, 64});
  const FitResult with = fit(made_statistics(layers), metric_fit_options("balanced"));
  expect_sound(with, layers);
  // The bias is gone with the mean: the same spectrum as without it.
  const std::vector<double>&a = without.layers[0].key_spectrum.lambda, &b = with.layers[0].key_spectrum.lambda;
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-3 * a[i]);
  const at::Tensor mean = layers[0].k.mean(0);
  EXPECT_LT(largest(with.layers[0].transform.key.mean - mean), 1e-3);
}

TEST(MetricFit, FewTokens) {
  at::manual_seed(4);
  for (const std::int64_t tokens : {1, 2, 5, 40}) {
    const std::vector<MadeRows> layers = {random_made_rows(tokens, 4, 2, 64)};
    for (const char* method : {"balanced", "waterfill"}) {
      expect_sound(fit(made_statistics(layers), metric_fit_options(method)), layers);
    }
  }
}

TEST(MetricFit, RankDeficientRowsAndMetrics) {
  at::manual_seed(5);
  std::vector<MadeRows> layers = {random_made_rows(1000, 4, 2, 64)};
  layers[0].k = at::matmul(at::randn({1000, 2, 3}), at::randn({3, 64}));  // three directions
  layers[0].q.slice(2, 8, 64).zero_();                                    // queries that see eight channels
  layers[0].v.slice(2, 32, 64).zero_();
  const FitResult result = fit(made_statistics(layers), metric_fit_options("waterfill"));
  expect_sound(result, layers);
}

TEST(MetricFit, HeadsThatNeverVaryAreNamed) {
  at::manual_seed(6);
  std::vector<MadeRows> layers = {random_made_rows(500, 4, 2, 64), random_made_rows(500, 4, 2, 64)};
  layers[1].k.select(1, 1).copy_(at::randn({64}).expand({500, 64}));  // constant, not zero: biases alone
  layers[0].v.select(1, 0).zero_();
  layers[1].q.slice(1, 0, 2).zero_();  // keys that no query reads
  for (const char* method : {"balanced", "waterfill"}) {
    const FitResult result = fit(made_statistics(layers), metric_fit_options(method));
    expect_sound(result, layers);
    EXPECT_THAT(result.warnings, Contains(HasSubstr("layer 0 values head 0: never varies")));
    EXPECT_THAT(result.warnings, Contains(HasSubstr("layer 1 keys head 0: no error in it reaches the output")));
    EXPECT_THAT(result.warnings, Contains(HasSubstr("layer 1 keys head 1: never varies")));
    EXPECT_THAT(result.warnings, Not(Contains(HasSubstr("layer 0 keys head 0"))));
  }
}

// Head 1: keys in one direction and queries in another, of so long a sample that nothing shrinks: the transform would
// stretch one by millions.
Statistics one_direction_each() {
  at::manual_seed(12);
  Statistics s = made_statistics({random_made_rows(500, 2, 2, 64)});
  LayerMoments& layer = s.layers[0];
  s.tokens = std::int64_t{1} << 45;
  const double tokens = static_cast<double>(s.tokens);
  const at::Tensor rows = at::ones({64}, at::kDouble), queries = at::linspace(-1.0, 1.0, 64, at::kDouble);
  layer.k_sum.zero_();
  layer.k_gram[1] = at::outer(rows, rows) * tokens;
  layer.q_gram[1] = at::outer(queries, queries) * tokens;
  layer.attention_residual = at::tensor({100.0 * tokens, tokens, 0.0, 0.0}, at::kDouble).view({2, 2});
  return s;
}

TEST(MetricFit, BadlyConditionedHeadsAreDampedAndNamed) {
  Statistics s = one_direction_each();
  s.layers[0].rows_q = s.layers[0].rows_k = s.layers[0].rows_v = at::Tensor();
  FitOptions o = metric_fit_options("balanced");
  o.damping = 0.0;
  o.max_rows = 0;
  const FitResult result = fit(s, o);
  EXPECT_THAT(result.warnings, Contains(AllOf(HasSubstr("layer 0 keys head 1"), HasSubstr("badly conditioned"))));
  EXPECT_THAT(result.warnings, Not(Contains(HasSubstr("layer 0 keys head 0"))));
  EXPECT_LT(result.layers[0].key_spectrum.condition, 1e4);
  EXPECT_TRUE(at::isfinite(result.layers[0].transform.key.forward).all().item<bool>());
}

// The same head with sampled rows that do not lie in that one direction: BF16 would lose their logits.
TEST(MetricFit, TransformsThatChangeRowsGiveWay) {
  FitOptions o = metric_fit_options("balanced");
  o.damping = 0.0;
  const FitResult result = fit(one_direction_each(), o);
  EXPECT_THAT(result.warnings, Contains(AllOf(HasSubstr("layer 0 keys head 1"), HasSubstr("changes sampled rows"))));
  EXPECT_THAT(result.warnings, Not(Contains(HasSubstr("layer 0 keys head 0"))));
  const SideTransform& key = result.layers[0].transform.key;
  const at::Tensor gram = at::matmul(key.forward[1].to(at::kDouble), key.forward[1].to(at::kDouble).t());
  EXPECT_LT(largest(gram / gram[0][0] - at::eye(64, at::kDouble)), 1e-5);  // the Hadamard matrix, scaled
  EXPECT_TRUE(result.layers[0].key_spectrum.check.sound());
}

TEST(MetricFit, WhatSampledRowsShowIsReported) {
  at::manual_seed(14);
  const FitResult result = fit(made_statistics({random_made_rows(500, 4, 2, 64)}), metric_fit_options("balanced"));
  for (const SideSpectrum* side : {&result.layers[0].key_spectrum, &result.layers[0].value_spectrum}) {
    EXPECT_GT(side->check.change, 0.0);
    EXPECT_LT(side->check.change, 1e-5);
    EXPECT_GT(side->check.plain, 1e-4);
    EXPECT_LT(side->check.bf16, 2.0 * side->check.plain);
  }
}

TEST(MetricFit, OutlierChannelsChangeNothing) {
  at::manual_seed(7);
  std::vector<MadeRows> plain = {random_made_rows(2000, 4, 2, 64)};
  std::vector<MadeRows> scaled = plain;
  const at::Tensor s = at::pow(2.0f, at::randint(-6, 8, {64}).to(at::kFloat));
  scaled[0].k = plain[0].k * s;
  scaled[0].q = plain[0].q / s;
  const FitResult a = fit(made_statistics(plain), metric_fit_options("waterfill"));
  const FitResult b = fit(made_statistics(scaled), metric_fit_options("waterfill"));
  EXPECT_EQ(a.layers[0].transform.key.widths, b.layers[0].transform.key.widths);
  EXPECT_NEAR(a.layers[0].key_spectrum.error, b.layers[0].key_spectrum.error, 1e-6 * a.layers[0].key_spectrum.error);
  expect_sound(b, scaled);
}

TEST(MetricFit, ScopeLayerSharesOneMatrix) {
  at::manual_seed(8);
  const std::vector<MadeRows> layers = {random_made_rows(500, 4, 2, 64)};
  FitOptions o = metric_fit_options("balanced");
  o.scope = Scope::kLayer;
  const FitResult result = fit(made_statistics(layers), o);
  EXPECT_EQ(result.layers[0].transform.key.forward.size(0), 1);
  EXPECT_EQ(result.layers[0].transform.key.mean.size(0), 2);
  expect_sound(result, layers);
}

TEST(MetricFit, HeadSizesThatAreNoPowerOfTwo) {
  at::manual_seed(9);
  for (const std::int64_t d : {80, 96}) {
    const std::vector<MadeRows> layers = {random_made_rows(1000, 2, 2, d)};
    expect_sound(fit(made_statistics(layers), metric_fit_options("balanced")), layers);
    if (d == 96) {
      expect_sound(fit(made_statistics(layers), metric_fit_options("waterfill")), layers);
    } else {
      EXPECT_THROW(fit(made_statistics(layers), metric_fit_options("waterfill")), UsageError);
    }
  }
}

TEST(MetricFit, OrthogonalMethodsMayCenter) {
  at::manual_seed(10);
  const std::vector<MadeRows> layers = {random_made_rows(500, 4, 2, 64)};
  FitOptions o = metric_fit_options("oscar");
  o.value_target = ValueTarget::kOutput;
  const FitResult result = fit(made_statistics(layers), o);
  EXPECT_TRUE(result.layers[0].transform.key.orthogonal());
  EXPECT_LT(largest(result.layers[0].transform.value.mean - layers[0].v.mean(0)), 1e-5);
}

TEST(MetricFit, KeysAloneMayBeCentered) {
  at::manual_seed(12);
  const std::vector<MadeRows> layers = {random_made_rows(500, 4, 2, 64)};
  FitOptions o = metric_fit_options("balanced");
  o.center = Center::kKey;
  const LayerTransform t = fit(made_statistics(layers), o).layers[0].transform;
  EXPECT_TRUE(t.key.mean.defined());
  EXPECT_FALSE(t.value.mean.defined());
}

// Queries so large that one bit in the strongest block would drown the logits in noise.
TEST(MetricFit, NoisyLogitsNeverGetOneBitAlone) {
  at::manual_seed(17);
  std::vector<MadeRows> layers = {random_made_rows(2000, 4, 2, 64), random_made_rows(2000, 4, 2, 64)};
  layers[0].q = layers[0].q * 20.0;
  Statistics s = made_statistics(layers);
  FitOptions o = metric_fit_options("waterfill");
  for (const double bits : {0.25, 0.3125, 0.375, 0.5, 0.75, 1.0}) {
    o.bits = bits;
    const std::vector<std::uint8_t> widths = fit(s, o).layers[0].transform.key.widths;
    EXPECT_NE(widths, (std::vector<std::uint8_t>{1, 0, 0, 0})) << bits;
  }
}

TEST(MetricFit, RefusesContradictions) {
  at::manual_seed(11);
  const std::vector<MadeRows> layers = {random_made_rows(100, 2, 2, 64)};
  const Statistics s = made_statistics(layers);
  FitOptions o = metric_fit_options("waterfill");
  o.clip = ClipMode::kSearch;
  EXPECT_THROW(fit(s, o), UsageError);
  o = metric_fit_options("waterfill");
  o.bits = 9.0;
  EXPECT_THROW(fit(s, o), UsageError);
}

}  // namespace
}  // namespace oscar
