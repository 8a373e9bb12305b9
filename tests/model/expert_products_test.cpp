// One grouped product for all experts against a product for each: empty experts, biases, both kinds of gates.
#include "model/experts.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "support/gpu.h"

namespace oscar {
namespace {

constexpr std::int64_t kExperts = 6, kHidden = 48, kWidth = 24;

struct Made {
  LayerWeights weights;
  ExpertRows rows;
};

Made make(const std::vector<std::int64_t>& counts, bool bias, at::Device device, at::ScalarType type) {
  at::manual_seed(3);
  const auto drawn = [&](at::IntArrayRef shape, double spread) {
    return at::randn(shape).mul_(spread).to(device, type);
  };
  Made m;
  m.weights.expert_gate_up = drawn({kExperts, 2 * kWidth, kHidden}, 0.2);
  m.weights.expert_down = drawn({kExperts, kHidden, kWidth}, 0.3);
  if (bias) {
    m.weights.expert_gate_up_bias = drawn({kExperts, 2 * kWidth}, 0.5);
    m.weights.expert_down_bias = drawn({kExperts, kHidden}, 0.5);
  }
  m.rows.counts = at::tensor(counts, at::kLong).to(device);
  m.rows.x = drawn({m.rows.counts.sum().item<std::int64_t>(), kHidden}, 1.0);
  return m;
}

double relative(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor wide = b.to(at::kDouble);
  return ((a.to(at::kDouble) - wide).norm() / wide.norm()).item<double>();
}

void compare(at::Device device, at::ScalarType type, double limit) {
  for (const std::vector<std::int64_t>& counts : std::vector<std::vector<std::int64_t>>{
           {0, 5, 0, 17, 1, 0}, {3, 3, 3, 3, 3, 3}, {0, 0, 0, 0, 0, 40}, {200, 0, 1, 7, 300, 2}}) {
    for (const bool bias : {false, true}) {
      for (const ExpertGate gate : {ExpertGate::kPlain, ExpertGate::kClamped}) {
        const Made m = make(counts, bias, device, type);
        const ExpertConfig config;
        const at::Tensor one = grouped_experts(m.rows, m.weights, config, gate, Activation::kGeluTanh);
        const at::Tensor each = looped_experts(m.rows, m.weights, config, gate, Activation::kGeluTanh);
        ASSERT_EQ(one.sizes(), each.sizes());
        EXPECT_EQ(one.scalar_type(), type);
        EXPECT_LT(relative(one, each), limit) << "bias " << bias << ", rows " << m.rows.x.size(0);
      }
    }
  }
}

TEST(ExpertProducts, GroupedAreThoseOfEachExpert) {
  compare(at::kCPU, at::kFloat, 1e-6);
  compare(at::kCPU, at::kBFloat16, 1e-2);
}

TEST(ExpertProducts, GroupedOnAGpuAreThoseOfEachExpert) {
  OSCAR_NEEDS_GPU();
  compare(at::kCUDA, at::kBFloat16, 1e-2);
}

// The whole MLP on a GPU, which takes the grouped products, against the loop in FP32 on the CPU.
TEST(ExpertProducts, ExpertsOnAGpuAreThoseOfTheCpu) {
  OSCAR_NEEDS_GPU();
  Made m = make({1, 0, 0, 0, 0, 0}, true, at::kCPU, at::kFloat);
  m.weights.router = at::randn({kExperts, kHidden});
  ExpertConfig config;
  config.count = kExperts, config.per_token = 3;
  LayerWeights there = m.weights, here = m.weights;
  for (const auto tensor : {&LayerWeights::expert_gate_up, &LayerWeights::expert_down,
                            &LayerWeights::expert_gate_up_bias, &LayerWeights::expert_down_bias}) {
    there.*tensor = (m.weights.*tensor).to(at::kCUDA, at::kBFloat16);
    here.*tensor = (there.*tensor).to(at::kCPU, at::kFloat);
  }
  there.router = m.weights.router.to(at::kCUDA);  // in FP32 on both, so that tokens choose alike
  const Pieces pieces{.wide_router = true};
  for (const std::int64_t tokens : {1, 5000}) {  // one token, and more than a block
    const at::Tensor x = at::randn({tokens, kHidden}).to(at::kBFloat16), y = x.to(at::kCUDA), wide = x.to(at::kFloat);
    ASSERT_TRUE(can_group(y, there));
    const at::Tensor out = expert_mlp(y, y, there, config, pieces, Activation::kSilu);
    EXPECT_LT(relative(out.cpu(), expert_mlp(wide, wide, here, config, pieces, Activation::kSilu)), 2e-2);
  }
}

TEST(ExpertProducts, TheLoopServesWhatTheGroupedProductCannot) {
  const Made m = make({1, 1, 1, 1, 1, 1}, false, at::kCPU, at::kBFloat16);
  EXPECT_FALSE(can_group(m.rows.x, m.weights));  // not on a GPU
}

TEST(ExpertProducts, TheLoopOnAGpuServesWhatTheGroupedProductCannot) {
  OSCAR_NEEDS_GPU();
  Made there = make({1, 1, 1, 1, 1, 1}, false, at::kCUDA, at::kBFloat16);
  EXPECT_TRUE(can_group(there.rows.x, there.weights));
  EXPECT_FALSE(can_group(there.rows.x.to(at::kFloat), there.weights));
  there.weights.expert_down = there.weights.expert_down.narrow(2, 0, 20);  // rows of 40 bytes
  EXPECT_FALSE(can_group(there.rows.x, there.weights));
}

}  // namespace
}  // namespace oscar
