// RMSNorm and the gated MLP: known answers.
#include "model/layer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

namespace oscar {
namespace {

at::Tensor random(at::IntArrayRef shape, std::uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::TensorOptions().dtype(at::kFloat));
}

TEST(RmsNorm, ConstantBecomesTheWeight) {
  const at::Tensor weight = random({40}, 1);
  EXPECT_TRUE(at::allclose(rms_norm(at::full({3, 40}, 7.0f), weight, 0.0), weight.expand({3, 40}), 1e-6));
  EXPECT_TRUE(at::allclose(rms_norm(at::full({3, 40}, -7.0f), weight, 0.0), -weight.expand({3, 40}), 1e-6));
}

TEST(RmsNorm, ScaleOfTheInputDoesNotMatterAndZeroStaysZero) {
  const at::Tensor x = random({5, 2, 48}, 2), weight = at::ones({48});
  EXPECT_TRUE(at::allclose(rms_norm(x, weight, 0.0), rms_norm(x * 64, weight, 0.0), 1e-6, 1e-7));
  EXPECT_TRUE(at::equal(rms_norm(at::zeros({2, 48}), weight, 1e-6), at::zeros({2, 48})));
  EXPECT_NEAR(rms_norm(x, weight, 0.0).square().mean().item<double>(), 1.0, 1e-6);
}

TEST(RmsNorm, EpsilonIsAddedToTheMeanSquare) {
  const at::Tensor y = rms_norm(at::full({1, 4}, 2.0f), at::ones({4}), 5.0);
  EXPECT_NEAR(y[0][0].item<double>(), 2.0 / 3.0, 1e-6);
}

// The normalised value is rounded to the activation dtype before the weight is applied.
TEST(RmsNorm, RoundsBeforeTheWeight) {
  const at::Tensor x = random({64, 48}, 3).to(at::kBFloat16), weight = random({48}, 4).to(at::kBFloat16);
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor normed = (wide * at::rsqrt(wide.pow(2).mean(-1, true) + 1e-6)).to(at::kBFloat16);
  EXPECT_TRUE(at::equal(rms_norm(x, weight, 1e-6), normed * weight));
}

TEST(RmsNorm, KindsDifferInWhereTheWeightIsApplied) {
  const at::Tensor x = random({64, 48}, 5).to(at::kBFloat16), weight = random({48}, 6).to(at::kBFloat16);
  const at::Tensor wide = x.to(at::kFloat), normed = wide * at::rsqrt(wide.pow(2).mean(-1, true) + 1e-6);
  const at::Tensor weighted = (normed * weight.to(at::kFloat)).to(at::kBFloat16);
  EXPECT_TRUE(at::equal(rms_norm(x, weight, 1e-6, NormKind::kWide), weighted));
  EXPECT_FALSE(at::equal(rms_norm(x, weight, 1e-6, NormKind::kRounded), weighted));
  EXPECT_TRUE(at::equal(rms_norm(x, weight, 1e-6, NormKind::kOnePlus),
                        (normed * (1 + weight.to(at::kFloat))).to(at::kBFloat16)));
}

LayerWeights mlp_weights(std::int64_t hidden, std::int64_t intermediate, bool bias) {
  LayerWeights w;
  w.gate = random({intermediate, hidden}, 10);
  w.up = random({intermediate, hidden}, 11);
  w.down = random({hidden, intermediate}, 12);
  if (bias) {
    w.gate_bias = random({intermediate}, 13);
    w.up_bias = random({intermediate}, 14);
    w.down_bias = random({hidden}, 15);
  }
  return w;
}

TEST(GatedMlp, ScalarCase) {
  LayerWeights w;
  w.gate = at::full({1, 1}, 2.0f);
  w.up = at::full({1, 1}, 3.0f);
  w.down = at::full({1, 1}, 5.0f);
  const double gate = 2.0 * 0.7, expected = 5.0 * (gate / (1.0 + std::exp(-gate))) * (3.0 * 0.7);
  EXPECT_NEAR(gated_mlp(at::full({1, 1}, 0.7f), w).item<double>(), expected, 1e-5);
}

TEST(GatedMlp, BlocksOfTokensEqualTheWhole) {
  for (const bool bias : {false, true}) {
    const LayerWeights w = mlp_weights(12, 20, bias);
    const at::Tensor x = random({5000, 12}, 16), y = gated_mlp(x, w);
    for (const std::int64_t start : {0, 4090, 4996}) {
      const at::Tensor part = gated_mlp(x.narrow(0, start, 4), w);
      EXPECT_TRUE(at::allclose(y.narrow(0, start, 4), part, 1e-5, 1e-4));
    }
  }
}

}  // namespace
}  // namespace oscar
