#include "collect/accumulator.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace oscar {
namespace {

// Direct formula in FP64: sum over tokens and the group's heads of x^T x.
at::Tensor direct_gram(const at::Tensor& x, std::int64_t kv_heads) {
  const at::Tensor wide = x.to(at::kDouble).reshape({x.size(0), kv_heads, -1, x.size(2)});
  return at::einsum("thgi,thgj->hij", {wide, wide});
}

double relative(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm().clamp_min(1e-300)).item<double>();
}

// Largest error of an entry in units of sqrt(G_ii G_jj), the size that entry can have.
double scaled_error(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor root = b.diagonal(0, 1, 2).sqrt();
  return ((a - b).abs() / (root.unsqueeze(2) * root.unsqueeze(1))).max().item<double>();
}

struct Rows {
  at::Tensor q, k, v, o;
};

Rows random_rows(std::int64_t tokens, std::int64_t heads, std::int64_t kv_heads, std::int64_t d) {
  return {at::randn({tokens, heads, d}), at::randn({tokens, kv_heads, d}), at::randn({tokens, kv_heads, d}),
          at::randn({tokens, heads, d})};
}

LayerMoments moments_of(const Rows& r, std::int64_t step = 1 << 20) {
  MomentAccumulator m(r.k.size(1), r.k.size(2), at::kCPU);
  for (std::int64_t t = 0; t < r.k.size(0); t += step) {
    const std::int64_t n = std::min(step, r.k.size(0) - t);
    m.add(r.q.narrow(0, t, n), r.k.narrow(0, t, n), r.v.narrow(0, t, n), r.o.narrow(0, t, n));
  }
  LayerMoments out;
  m.finish(out);
  EnergyAccumulator energy(out.q_gram, at::kCPU);
  for (std::int64_t t = 0; t < r.k.size(0); t += step) {
    const std::int64_t n = std::min(step, r.k.size(0) - t);
    energy.add(r.k.narrow(0, t, n), r.v.narrow(0, t, n));
  }
  out.energy_gram = energy.energy_gram();
  return out;
}

TEST(Accumulator, UnitRowsGiveCountsOnTheDiagonal) {
  // Token t is the basis vector t mod d in every head: each gram is T/d on the diagonal, times the group size for q, o.
  const std::int64_t tokens = 64, d = 8;
  const at::Tensor eye = at::eye(d).repeat({tokens / d, 1}).unsqueeze(1);
  const LayerMoments m =
      moments_of({eye.repeat({1, 6, 1}), eye.repeat({1, 2, 1}), eye.repeat({1, 2, 1}), eye.repeat({1, 6, 1})});
  const at::Tensor expected = at::eye(d, at::kDouble).unsqueeze(0).repeat({2, 1, 1}) * 8.0;
  EXPECT_TRUE(m.k_gram.equal(expected));
  EXPECT_TRUE(m.v_gram.equal(expected));
  EXPECT_TRUE(m.q_gram.equal(expected * 3));
  EXPECT_TRUE(m.o_gram.equal(expected * 3));
  EXPECT_TRUE(m.k_sum.equal(at::full({2, d}, 8.0, at::kDouble)));
  // All energies are equal, so the weights are 1 and the proxy is V^T V.
  EXPECT_LT(relative(m.energy_gram, expected), 1e-7);
}

TEST(Accumulator, OneTokenIsRankOne) {
  const Rows r = random_rows(1, 1, 1, 16);
  const LayerMoments m = moments_of(r);
  const at::Tensor k = r.k[0][0].to(at::kDouble);
  EXPECT_LT(relative(m.k_gram[0], at::outer(k, k)), 1e-6);
  const at::Tensor values = at::linalg_eigvalsh(m.k_gram[0]);
  EXPECT_NEAR(values[15].item<double>(), k.dot(k).item<double>(), 1e-5 * k.dot(k).item<double>());
  EXPECT_LT(values[14].abs().item<double>(), 1e-5 * values[15].item<double>());
}

TEST(Accumulator, EqualsTheDirectFormula) {
  at::manual_seed(3);
  for (const auto& [tokens, heads, kv_heads, d] :
       std::vector<std::tuple<int, int, int, int>>{{1, 4, 2, 8}, {700, 6, 3, 20}, {5000, 4, 1, 64}, {3000, 8, 8, 96}}) {
    const Rows r = random_rows(tokens, heads, kv_heads, d);
    const LayerMoments m = moments_of(r);
    EXPECT_LT(relative(m.q_gram, direct_gram(r.q, kv_heads)), 1e-6);
    EXPECT_LT(relative(m.k_gram, direct_gram(r.k, kv_heads)), 1e-6);
    EXPECT_LT(relative(m.v_gram, direct_gram(r.v, kv_heads)), 1e-6);
    EXPECT_LT(relative(m.o_gram, direct_gram(r.o, kv_heads)), 1e-6);
    EXPECT_LT(scaled_error(m.q_gram, direct_gram(r.q, kv_heads)), 1e-6);
    EXPECT_LT(scaled_error(m.k_gram, direct_gram(r.k, kv_heads)), 1e-6);
    EXPECT_LT(relative(m.k_sum, r.k.to(at::kDouble).sum(0)), 1e-5);
    EXPECT_LT(relative(m.v_sum, r.v.to(at::kDouble).sum(0)), 1e-5);
  }
}

TEST(Accumulator, OutlierChannelsKeepTheirAccuracy) {
  // Channels 10^3 apart in size: the small ones must not drown in the rounding of the large ones.
  at::manual_seed(4);
  Rows r = random_rows(4000, 4, 2, 32);
  const at::Tensor scale = at::logspace(-1.5, 1.5, 32);
  r.k = r.k * scale + 3 * scale;
  r.q = r.q * scale;
  const LayerMoments m = moments_of(r);
  EXPECT_LT(scaled_error(m.k_gram, direct_gram(r.k, 2)), 1e-6);
  EXPECT_LT(scaled_error(m.q_gram, direct_gram(r.q, 2)), 1e-6);
}

TEST(Accumulator, GramsAreExactlySymmetric) {
  at::manual_seed(5);
  const LayerMoments m = moments_of(random_rows(333, 4, 2, 48), 100);
  for (const at::Tensor& g : {m.q_gram, m.k_gram, m.v_gram, m.o_gram, m.energy_gram}) {
    EXPECT_TRUE(g.equal(g.transpose(1, 2)));
  }
}

TEST(Accumulator, PublishedEnergyProxy) {
  at::manual_seed(6);
  const Rows r = random_rows(500, 4, 2, 16);
  const at::Tensor c = direct_gram(r.q, 2), k = r.k.to(at::kDouble), v = r.v.to(at::kDouble);
  at::Tensor w = at::einsum("thi,hij,thj->th", {k, c, k});
  w = w * 500 / w.sum(0, true);
  EXPECT_NEAR(w.mean().item<double>(), 1.0, 1e-12);
  const at::Tensor expected = at::einsum("th,thi,thj->hij", {w, v, v});
  EXPECT_LT(relative(moments_of(r, 64).energy_gram, expected), 1e-6);
}

TEST(Accumulator, DeadHeadsGiveZeroNotNaN) {
  const at::Tensor zero = at::zeros({10, 2, 8});
  const LayerMoments m = moments_of({zero, zero, at::ones({10, 2, 8}), zero});
  EXPECT_TRUE(m.q_gram.eq(0).all().item<bool>());
  EXPECT_TRUE(m.energy_gram.eq(0).all().item<bool>());
}

TEST(Accumulator, BFloat16AndStridedInput) {
  at::manual_seed(7);
  const Rows r = random_rows(300, 4, 2, 16);
  const auto half = [](const at::Tensor& t) { return t.to(at::kBFloat16); };
  const LayerMoments m = moments_of({half(r.q), half(r.k), half(r.v), half(r.o)});
  // BF16 products are exact in FP32, so only the sum rounds.
  EXPECT_LT(relative(m.k_gram, direct_gram(half(r.k), 2)), 1e-6);
  // A view whose rows are not adjacent, as a fused QKV projection would hand out.
  const at::Tensor fused = at::cat({r.q, r.k, r.v}, 1);
  const LayerMoments strided = moments_of({fused.narrow(1, 0, 4), fused.narrow(1, 4, 2), fused.narrow(1, 6, 2), r.o});
  EXPECT_TRUE(strided.q_gram.equal(moments_of(r).q_gram));
  EXPECT_TRUE(strided.k_gram.equal(moments_of(r).k_gram));
}

TEST(Accumulator, NoticesNaNAndInfinity) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (int which = 0; which < 4; ++which) {
      Rows r = random_rows(20, 4, 2, 8);
      at::Tensor* tensors[] = {&r.q, &r.k, &r.v, &r.o};
      MomentAccumulator m(2, 8, at::kCPU);
      m.add(r.q, r.k, r.v, r.o);
      EXPECT_TRUE(std::isfinite(m.trace().item<double>()));
      (*tensors[which])[7][1][3] = bad;
      m.add(r.q, r.k, r.v, r.o);
      EXPECT_FALSE(std::isfinite(m.trace().item<double>()));
    }
  }
}

TEST(Accumulator, OutputProjectionGram) {
  at::manual_seed(9);
  const at::Tensor w = at::randn({40, 4 * 8});
  const at::Tensor blocks = w.to(at::kDouble).reshape({40, 2, 2, 8});  // hidden, KV head, query head of its group, d
  EXPECT_LT(relative(output_projection_gram(w, 2, 8), at::einsum("xhgi,xhgj->hij", {blocks, blocks})), 1e-14);
}

}  // namespace
}  // namespace oscar
