// Backward passes that are written out (norm, RoPE) against autograd of the definition and against the transposed map.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "model/layer.h"
#include "model/rope.h"
#include "support/gpu.h"

namespace oscar {
namespace {

constexpr double kEps = 1e-3;

at::Tensor gradient_of(const at::Tensor& y, const at::Tensor& x, const at::Tensor& g) {
  return torch::autograd::grad({y}, {x}, {g})[0];
}

// x (mean(x^2) + eps)^-1/2 w, with nothing written out.
at::Tensor defined_norm(const at::Tensor& x, const at::Tensor& w) {
  return x / (x.square().mean(-1, true) + kEps).sqrt() * w;
}

struct NormCase {
  NormKind kind;
  bool weighed;
  double added = 0.0;  // to the weight
};

class NormGradient : public testing::TestWithParam<NormCase> {};

TEST_P(NormGradient, IsThatOfTheDefinition) {
  at::manual_seed(2);
  const NormCase& c = GetParam();
  const at::Tensor weight = at::randn({12}), x = (at::randn({5, 3, 12}) * 2.0 + 1.0).requires_grad_(true);
  const at::Tensor g = at::randn_like(x);
  const at::Tensor y = rms_norm(x, c.weighed ? weight : at::Tensor(), kEps, c.kind);
  EXPECT_TRUE(y.equal(rms_norm(x.detach(), c.weighed ? weight : at::Tensor(), kEps, c.kind)));
  const at::Tensor found = gradient_of(y, x, g);
  const at::Tensor exact = x.detach().to(at::kDouble).requires_grad_(true);
  const at::Tensor factor = c.weighed ? weight.to(at::kDouble) + c.added : at::ones({12}, at::kDouble);
  const at::Tensor expected = gradient_of(defined_norm(exact, factor), exact, g.to(at::kDouble));
  EXPECT_LT(((found - expected).norm() / expected.norm()).item<double>(), 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Kinds, NormGradient,
                         testing::Values(NormCase{NormKind::kRounded, true}, NormCase{NormKind::kWide, true},
                                         NormCase{NormKind::kOnePlus, true, 1.0}, NormCase{NormKind::kRounded, false}));

TEST(NormGradientGpu, OfBFloat16) {
  OSCAR_NEEDS_GPU();
  at::manual_seed(2);
  const at::Tensor weight = at::randn({256}).to(at::kBFloat16),
                   rows = (at::randn({70, 4, 256}) * 2.0).to(at::kBFloat16);
  const at::Tensor g = at::randn_like(rows);
  at::Tensor x = rows.to(at::kCUDA).requires_grad_(true), exact = rows.to(at::kDouble).requires_grad_(true);
  const at::Tensor found = gradient_of(rms_norm(x, weight.to(at::kCUDA), kEps, NormKind::kRounded), x, g.to(at::kCUDA));
  const at::Tensor expected = gradient_of(defined_norm(exact, weight.to(at::kDouble)), exact, g.to(at::kDouble));
  EXPECT_EQ(found.scalar_type(), at::kBFloat16);
  EXPECT_LT(((found.cpu().to(at::kDouble) - expected).norm() / expected.norm()).item<double>(), 4e-3);
}

// A rotation is linear: <g, R x> = <R^T g, x>.
TEST(RopeGradient, IsTheTransposedMap) {
  at::manual_seed(4);
  for (const bool interleaved : {false, true}) {
    for (const std::int64_t pairs : {8, 5}) {  // all channels turn, or some
      const at::Tensor angles = at::rand({40, 1, pairs}) * 6.0;
      const RopeTable table{angles.cos(), angles.sin(), interleaved, {}};
      const at::Tensor x = at::randn({40, 2, 16}).requires_grad_(true), g = at::randn({40, 2, 16});
      const at::Tensor y = apply_rope(x, table), found = gradient_of(y, x, g);
      EXPECT_TRUE(y.equal(apply_rope(x.detach(), table)));
      const at::Tensor other = at::randn({40, 2, 16});
      EXPECT_NEAR((g * apply_rope(other, table)).sum().item<double>(), (found * other).sum().item<double>(), 1e-3);
      EXPECT_FALSE(found.equal(g));
    }
  }
}

}  // namespace
}  // namespace oscar
