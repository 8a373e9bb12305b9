#include "collect/pre_rope_moments.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/errors.h"
#include "collect/residual_energy.h"
#include "statistics/statistics.h"

namespace oscar {
namespace {

constexpr std::int64_t kHeads = 2, kQueryHeads = 4, kDim = 16;

struct Made {
  SequenceBatch batch{{0, 1, 2}, {300, 41, 700}, {0, 0, 0}};
  at::Tensor q, k;  // [T, H, d] before RoPE
  RopeFrequencies frequencies;
  AttentionInput input;  // after RoPE
};

// Keys whose mean before RoPE is `bias` times their deviation.
Made make(double bias, double factor) {
  at::manual_seed(3);
  Made m;
  ModelConfig config;
  m.frequencies = rope_frequencies(config.rope, kDim, 4096);
  m.frequencies.attention_factor = factor;
  const std::int64_t tokens = m.batch.tokens();
  m.k = at::randn({tokens, kHeads, kDim}) + bias * at::randn({kHeads, kDim});
  m.q = at::randn({tokens, kQueryHeads, kDim}) * at::linspace(0.5, 2.0, kDim);
  const RopeTable table = rope_table(m.frequencies, m.batch, at::kFloat, at::kCPU);
  m.input.k = apply_rope(m.k, table), m.input.q = apply_rope(m.q, table);
  return m;
}

LayerMoments collected(const Made& m) {
  Unrotation unrotation(m.frequencies, at::kCPU);
  PreRopeAccumulator sums(kHeads, kDim, at::kCPU);
  sums.begin_layer();
  AttentionInput input = m.input;
  input.batch = &m.batch;
  sums.add(input, unrotation.rows_of(m.batch));
  LayerMoments out;
  sums.finish(out);
  return out;
}

// [T, H, d] -> [Hkv, d, d] FP64
at::Tensor gram(const at::Tensor& x) {
  const at::Tensor rows =
      x.to(at::kDouble).view({x.size(0), kHeads, -1, kDim}).permute({1, 0, 2, 3}).reshape({kHeads, -1, kDim});
  return at::matmul(rows.transpose(1, 2), rows);
}

double relative(const at::Tensor& a, const at::Tensor& b) { return ((a - b).norm() / b.norm()).item<double>(); }

TEST(PreRopeMoments, EqualThoseOfTheRowsBeforeRope) {
  for (const double factor : {1.0, 1.3}) {
    for (const double bias : {0.0, 12.0}) {
      const Made m = make(bias, factor);
      const LayerMoments found = collected(m);
      EXPECT_LT(relative(found.pre_q_gram, gram(m.q)), 1e-6);
      EXPECT_LT(relative(found.pre_k_gram, gram(m.k)), 1e-6);
      EXPECT_LT(relative(found.pre_k_sum, m.k.to(at::kDouble).sum(0)), 1e-5);
      // The covariance keeps its digits beside a bias of 12 times its size.
      const double tokens = static_cast<double>(m.batch.tokens());
      const at::Tensor mean = found.pre_k_sum / tokens, centered = m.k.to(at::kDouble) - m.k.to(at::kDouble).mean(0);
      const at::Tensor covariance = found.pre_k_gram / tokens - mean.unsqueeze(2) * mean.unsqueeze(1);
      EXPECT_LT(relative(covariance, gram(centered) / tokens), 1e-5) << bias;
    }
  }
}

TEST(PreRopeMoments, ChannelsThatDoNotTurnStay) {
  at::manual_seed(4);
  const at::Tensor x = at::randn({5, 3, 10}), angles = at::randn({5, 1, 3});
  const at::Tensor back = undo_rope(x, angles.cos(), angles.sin());
  EXPECT_TRUE(back.narrow(2, 6, 4).equal(x.narrow(2, 6, 4)));
  const at::Tensor x1 = x.narrow(2, 0, 3), x2 = x.narrow(2, 3, 3);
  EXPECT_TRUE(at::allclose(back.narrow(2, 0, 3), x1 * angles.cos() + x2 * angles.sin(), 1e-6, 1e-6));
  EXPECT_TRUE(at::allclose(back.narrow(2, 3, 3), x2 * angles.cos() - x1 * angles.sin(), 1e-6, 1e-6));
  const at::Tensor nothing = at::empty({5, 1, 0});
  EXPECT_TRUE(undo_rope(x, nothing, nothing).equal(x));
}

TEST(PreRopeMoments, StatisticsWithoutThemSaySo) {
  Statistics s;
  s.layers.emplace_back();
  EXPECT_THROW(pre_rope_key_mean(s, 0), InputError);
}

TEST(ResidualEnergy, AllTokensAndThoseWithFarKeys) {
  at::manual_seed(5);
  const SequenceBatch batch{{0, 1, 2}, {20, 5, 9}, {0, 0, 0}};
  const at::Tensor x = at::randn({34, 7}) * 30.0;
  const at::Tensor square = x.to(at::kDouble).square().sum(1);
  for (const bool enabled : {true, false}) {
    ResidualAccumulator residual({3, 5, enabled}, at::kCPU);
    residual.begin_layer();
    residual.add(batch, x, {});
    LayerMoments one;
    residual.finish(one);
    const at::Tensor t = one.attention_residual;
    EXPECT_NEAR(t[0][0].item<double>(), square.sum().item<double>(), 1e-6 * square.sum().item<double>());
    EXPECT_EQ(t[0][1].item<double>(), 34.0);
    // Tokens 8 .. 19 of the first sequence and 8 of the third.
    const double far = (square.narrow(0, 8, 12).sum() + square[33]).item<double>();
    EXPECT_NEAR(t[1][0].item<double>(), enabled ? far : 0.0, 1e-6 * far);
    EXPECT_EQ(t[1][1].item<double>(), enabled ? 13.0 : 0.0);
  }
}

}  // namespace
}  // namespace oscar
