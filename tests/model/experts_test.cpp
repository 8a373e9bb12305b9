// Experts: known answers, every token through its own experts one by one, and independence of how tokens are packed.
#include "model/experts.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "model/layer.h"

namespace oscar {
namespace {

constexpr std::int64_t kExperts = 5, kHidden = 12, kWidth = 7;

at::Tensor drawn(at::IntArrayRef shape, std::uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::TensorOptions().dtype(at::kFloat));
}

LayerWeights expert_weights(bool bias) {
  LayerWeights w;
  w.router = drawn({kExperts, kHidden}, 1);
  w.expert_gate_up = drawn({kExperts, 2 * kWidth, kHidden}, 2);
  w.expert_down = drawn({kExperts, kHidden, kWidth}, 3);
  if (bias) {
    w.router_bias = drawn({kExperts}, 4);
    w.expert_gate_up_bias = drawn({kExperts, 2 * kWidth}, 5);
    w.expert_down_bias = drawn({kExperts, kHidden}, 6);
  }
  return w;
}

ExpertConfig config_of(std::int64_t per_token) {
  ExpertConfig config;
  config.count = kExperts, config.per_token = per_token, config.intermediate = kWidth;
  return config;
}

// Logits 0, ln 2, ln 4 by the identity: probabilities 1/7, 2/7, 4/7.
TEST(Route, SoftmaxOverAllOrOverTheChosen) {
  LayerWeights w;
  w.router = at::eye(3);
  ExpertConfig config;
  config.count = 3, config.per_token = 2, config.normalized = false;
  const at::Tensor x = at::tensor({0.0f, std::log(2.0f), std::log(4.0f)}).view({1, 3});
  Routing routing = route(x, w, config, {});
  EXPECT_TRUE(at::equal(routing.experts, at::tensor({2, 1}, at::kLong).view({1, 2})));
  EXPECT_TRUE(at::allclose(routing.weights, at::tensor({4.0f / 7, 2.0f / 7}).view({1, 2}), 1e-6));
  config.normalized = true;
  const at::Tensor share = at::tensor({2.0f / 3, 1.0f / 3}).view({1, 2});
  EXPECT_TRUE(at::allclose(route(x, w, config, {}).weights, share, 1e-6));
  config.normalized = false;
  EXPECT_TRUE(at::allclose(route(x, w, config, {.router = RouterKind::kLargestFirst}).weights, share, 1e-6));
}

// Llama 4: the sigmoids of the largest logits, 4/5 of ln 4 and 2/3 of ln 2, scale what the experts read.
TEST(Experts, WeightsMayScaleWhatExpertsRead) {
  LayerWeights w;
  w.router = at::cat({at::eye(3), at::zeros({3, kHidden - 3})}, 1);
  w.expert_gate_up = drawn({3, 2 * kWidth, kHidden}, 2), w.expert_down = drawn({3, kHidden, kWidth}, 3);
  ExpertConfig config;
  config.count = 3, config.per_token = 2, config.normalized = false;
  at::Tensor x = drawn({1, kHidden}, 4);
  x.narrow(1, 0, 3).copy_(at::tensor({0.0f, std::log(2.0f), std::log(4.0f)}));
  const Pieces pieces{.router = RouterKind::kLargestSigmoids, .weighed_inputs = true};
  const Routing routing = route(x, w, config, pieces);
  EXPECT_TRUE(at::equal(routing.experts, at::tensor({2, 1}, at::kLong).view({1, 2})));
  EXPECT_TRUE(at::allclose(routing.weights, at::tensor({4.0f / 5, 2.0f / 3}).view({1, 2}), 1e-6));
  at::Tensor expected = at::zeros({1, kHidden});
  for (const auto& [expert, weight] : {std::pair{2, 4.0 / 5}, {1, 2.0 / 3}}) {
    LayerWeights one;
    one.gate = w.expert_gate_up[expert].narrow(0, 0, kWidth),
    one.up = w.expert_gate_up[expert].narrow(0, kWidth, kWidth);
    one.down = w.expert_down[expert];
    expected += gated_mlp(x * weight, one);
  }
  EXPECT_TRUE(at::allclose(expert_mlp(x, x, w, config, pieces, Activation::kSilu), expected, 1e-5, 1e-6));
}

// Sigmoids 1/2, 2/3, 4/5, 8/9 of logits 0, ln 2, ln 4, ln 8.
TEST(Route, CorrectionsChooseButDoNotWeigh) {
  LayerWeights w;
  w.router = at::eye(4);
  ExpertConfig config;
  config.count = 4, config.per_token = 2, config.normalized = false;
  const at::Tensor x = at::tensor({0.0f, std::log(2.0f), std::log(4.0f), std::log(8.0f)}).view({1, 4});
  const Pieces sigmoid = {.router = RouterKind::kSigmoid, .rounded_weights = false};
  EXPECT_TRUE(at::allclose(route(x, w, config, sigmoid).weights, at::tensor({8.0f / 9, 0.8f}).view({1, 2}), 1e-6));
  w.router_correction = at::tensor({1.0f, 0.0f, 0.0f, 0.0f});
  Routing routing = route(x, w, config, sigmoid);
  EXPECT_TRUE(at::equal(routing.experts, at::tensor({0, 3}, at::kLong).view({1, 2})));
  EXPECT_TRUE(at::allclose(routing.weights, at::tensor({0.5f, 8.0f / 9}).view({1, 2}), 1e-6));
  config.normalized = true, config.scaling = 2.5;
  const float sum = 0.5f + 8.0f / 9;
  EXPECT_TRUE(at::allclose(route(x, w, config, sigmoid).weights,
                           at::tensor({1.25f / sum, 2.5f * 8.0f / 9 / sum}).view({1, 2}), 1e-6));
  config.scaling = 1.0, config.least_sum = 2.0;
  EXPECT_TRUE(at::allclose(route(x, w, config, sigmoid).weights, at::tensor({0.25f, 4.0f / 9}).view({1, 2}), 1e-6));
}

// Three groups of two: the best expert of all stands in a group whose sum is not among the best two.
TEST(Route, ExpertsComeFromTheBestGroups) {
  LayerWeights w;
  w.router = at::eye(6);
  ExpertConfig config;
  config.count = 6, config.per_token = 2, config.groups = 3, config.groups_chosen = 2;
  const at::Tensor x = at::tensor({4.0f, -9.0f, 2.0f, 1.0f, 1.5f, 3.0f}).view({1, 6});
  const Pieces sigmoid = {.router = RouterKind::kSigmoid};
  EXPECT_TRUE(at::equal(route(x, w, config, sigmoid).experts, at::tensor({5, 2}, at::kLong).view({1, 2})));
  config.groups_chosen = 3;
  EXPECT_TRUE(at::equal(route(x, w, config, sigmoid).experts, at::tensor({0, 5}, at::kLong).view({1, 2})));
}

TEST(Route, WeightsAreRoundedWhereTheFamilyRoundsThem) {
  const LayerWeights w = expert_weights(false);
  LayerWeights half;
  half.router = w.router.to(at::kBFloat16);
  const at::Tensor x = drawn({4, kHidden}, 9).to(at::kBFloat16);
  EXPECT_EQ(route(x, half, config_of(2), {.rounded_weights = true}).weights.scalar_type(), at::kBFloat16);
  EXPECT_EQ(route(x, half, config_of(2), {.rounded_weights = false}).weights.scalar_type(), at::kFloat);
}

TEST(ExpertMlp, EqualsEachTokenThroughItsExperts) {
  for (const bool clamped : {false, true}) {
    const LayerWeights w = expert_weights(clamped);
    const ExpertConfig config = config_of(3);
    Pieces pieces;
    if (clamped) pieces.router = RouterKind::kLargestFirst, pieces.gate = ExpertGate::kClamped;
    const at::Tensor x = drawn({23, kHidden}, 7) * 3;
    const at::Tensor y = expert_mlp(x, x, w, config, pieces, Activation::kSilu);
    const Routing routing = route(x, w, config, pieces);
    for (std::int64_t t = 0; t < 23; ++t) {
      at::Tensor sum = at::zeros({kHidden});
      for (std::int64_t j = 0; j < 3; ++j) {
        const auto e = routing.experts[t][j].item<std::int64_t>();
        at::Tensor both = at::mv(w.expert_gate_up[e], x[t]);
        if (clamped) both = both + w.expert_gate_up_bias[e];
        at::Tensor gate = both.narrow(0, 0, kWidth), up = both.narrow(0, kWidth, kWidth);
        at::Tensor inner;
        if (clamped) {
          gate = gate.clamp_max(7), up = up.clamp(-7, 7);
          inner = (up + 1) * gate * at::sigmoid(1.702 * gate);
        } else {
          inner = at::silu(gate) * up;
        }
        at::Tensor out = at::mv(w.expert_down[e], inner);
        if (clamped) out = out + w.expert_down_bias[e];
        sum += routing.weights[t][j] * out;
      }
      EXPECT_TRUE(at::allclose(y[t], sum, 1e-4, 1e-4)) << t;
    }
  }
}

// Some experts get no token at all, and one token alone gets what it gets among thousands.
TEST(ExpertMlp, PackingDoesNotMatter) {
  const LayerWeights w = expert_weights(true);
  const ExpertConfig config = config_of(2);
  const at::Tensor x = drawn({5000, kHidden}, 8), y = expert_mlp(x, x, w, config, {}, Activation::kSilu);
  for (const std::int64_t t : {0, 4095, 4096, 4999}) {
    const at::Tensor alone = expert_mlp(x.narrow(0, t, 1), x.narrow(0, t, 1), w, config, {}, Activation::kSilu);
    EXPECT_TRUE(at::allclose(alone[0], y[t], 1e-5, 1e-4)) << t;
  }
}

TEST(ExpertMlp, OneExpertForAllIsAMlp) {
  const LayerWeights w = expert_weights(false);
  LayerWeights one, plain;
  one.router = at::zeros({1, kHidden});
  one.expert_gate_up = w.expert_gate_up.narrow(0, 2, 1), one.expert_down = w.expert_down.narrow(0, 2, 1);
  plain.gate = w.expert_gate_up[2].narrow(0, 0, kWidth), plain.up = w.expert_gate_up[2].narrow(0, kWidth, kWidth);
  plain.down = w.expert_down[2];
  ExpertConfig config = config_of(1);
  config.count = 1;
  const at::Tensor x = drawn({9, kHidden}, 10);
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
    EXPECT_TRUE(
        at::allclose(expert_mlp(x, x, one, config, {}, activation), gated_mlp(x, plain, activation), 1e-4, 1e-5));
  }
}

}  // namespace
}  // namespace oscar
