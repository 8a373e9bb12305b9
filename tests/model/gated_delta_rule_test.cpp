// The gated delta rule: by hand, in chunks against the specification, and cut anywhere.
#include "model/gated_delta_net.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace oscar {
namespace {

// B sequences, H heads, T tokens; keys of length 1; decays exp(-rate) and steps that differ from token to token.
DeltaRuleInput random_input(std::int64_t tokens, double rate, std::int64_t sequences = 2, std::int64_t heads = 3) {
  const auto unit = [](const at::Tensor& x) { return x / x.norm(2, -1, true); };
  return {unit(at::randn({sequences, heads, tokens, 12})) * 0.3, unit(at::randn({sequences, heads, tokens, 12})),
          at::randn({sequences, heads, tokens, 20}), at::rand({sequences, heads, tokens}) * -rate,
          at::rand({sequences, heads, tokens})};
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs().max() / b.abs().max()).item<double>();
}

TEST(GatedDeltaRule, TwoTokensByHand) {
  const auto row = [](std::vector<float> x) {
    return at::tensor(x).view({1, 1, 2, static_cast<std::int64_t>(x.size()) / 2});
  };
  // The first token stores (4, 8) / 2 under (1, 0). The second finds a half of it left, (1, 2), corrects it to (5, 6)
  // by a quarter of the difference, and reads twice.
  DeltaRuleInput x{row({1, 0, 2, 0}), row({1, 0, 1, 0}), row({4, 8, 5, 6}), at::tensor({-9.0f, std::log(0.5f)}), {}};
  x.log_decay = x.log_decay.view({1, 1, 2});
  x.beta = at::tensor({0.5f, 0.25f}).view({1, 1, 2});
  for (const auto& rule : {recurrent_delta_rule, chunked_delta_rule}) {
    const DeltaRuleOutput out = rule(x, at::zeros({1, 1, 2, 2}));
    EXPECT_TRUE(at::allclose(out.output.view({2, 2}), at::tensor({2.0f, 4.0f, 4.0f, 6.0f}).view({2, 2})));
    EXPECT_TRUE(at::allclose(out.memory.view({2, 2}), at::tensor({2.0f, 3.0f, 0.0f, 0.0f}).view({2, 2})));
  }
}

TEST(GatedDeltaRule, ChunksGiveWhatTokensGive) {
  at::manual_seed(1);
  for (const double rate : {0.0, 0.1, 3.0, 60.0}) {  // from no forgetting to all of it at once
    for (const std::int64_t tokens : {1, 2, 63, 64, 65, 200}) {
      const DeltaRuleInput x = random_input(tokens, rate);
      const at::Tensor memory = at::randn({2, 3, 12, 20});
      const DeltaRuleOutput plain = recurrent_delta_rule(x, memory), chunked = chunked_delta_rule(x, memory);
      EXPECT_LT(difference(chunked.output, plain.output), 2e-5) << rate << " " << tokens;
      EXPECT_LT(difference(chunked.memory, plain.memory), 2e-5) << rate << " " << tokens;
    }
  }
}

TEST(GatedDeltaRule, DecaysBeyondTheRangeOfFloatAreNoNaN) {
  at::manual_seed(2);
  DeltaRuleInput x = random_input(130, 1.0);
  x.log_decay = x.log_decay - 500.0;
  const at::Tensor memory = at::randn({2, 3, 12, 20});
  const DeltaRuleOutput plain = recurrent_delta_rule(x, memory), chunked = chunked_delta_rule(x, memory);
  EXPECT_TRUE(chunked.output.isfinite().all().item<bool>());
  EXPECT_LT(difference(chunked.output, plain.output), 2e-5);
}

TEST(GatedDeltaRule, GradientsPassThroughChunks) {
  const c10::AutoGradMode on(true);
  at::manual_seed(3);
  const DeltaRuleInput x = random_input(70, 0.5, 1, 1);
  std::vector<at::Tensor> found;
  for (const auto& rule : {recurrent_delta_rule, chunked_delta_rule}) {
    DeltaRuleInput leaf{x.q, x.k.detach().clone().requires_grad_(true), x.v, x.log_decay, x.beta};
    rule(leaf, at::zeros({1, 1, 12, 20})).output.square().sum().backward();
    found.push_back(leaf.k.grad());
  }
  EXPECT_LT(difference(found[1], found[0]), 1e-4);
}

}  // namespace
}  // namespace oscar
