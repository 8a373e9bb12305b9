#include "moments/phase_moments.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/errors.h"
#include "model/phase_table.h"
#include "moments/accumulator.h"

namespace oscar {
namespace {

constexpr std::int64_t kHeads = 2, kDim = 16;

struct Made {
  SequenceBatch batch{{0, 1, 2}, {300, 41, 700}, {0, 0, 0}};
  at::Tensor k, centred;  // [T, Hkv, d] after RoPE; less the rotated mean of the sample, FP64
  at::Tensor mean;        // [Hkv, d] of the sample, before RoPE
  Statistics s;
};

// Keys whose mean before RoPE is `bias` times their deviation.
Made make(double bias, double factor = 1.0) {
  at::manual_seed(3);
  Made m;
  ModelConfig config;
  config.head_dim = kDim, config.kv_heads = kHeads, config.query_heads = kHeads, config.max_position = 4096;
  RopeFrequencies f = rope_frequencies(config.rope, kDim, 4096);
  const std::int64_t tokens = m.batch.tokens();
  const at::Tensor before = at::randn({tokens, kHeads, kDim}) + bias * at::randn({kHeads, kDim});
  f.attention_factor = factor;
  m.k = apply_rope(before, rope_table(f, m.batch, at::kFloat, at::kCPU));
  m.mean = before.to(at::kDouble).mean(0);
  std::vector<std::int64_t> positions;
  for (const std::int64_t length : m.batch.lengths) {
    for (std::int64_t p = 0; p < length; ++p) positions.push_back(p);
  }
  m.centred = m.k.to(at::kDouble) - rotated_means(m.mean, phase_rows(f, positions)).to(at::kDouble);

  m.s.tokens = tokens, m.s.kv_heads = kHeads, m.s.head_dim = kDim;
  LayerMoments& layer = m.s.layers.emplace_back();
  MomentAccumulator moments(kHeads, kDim, at::kCPU);
  moments.add(m.k, m.k, m.k, m.k);
  moments.finish(layer);
  if (factor != 1.0) return m;  // the accumulator takes its frequencies from the model
  PhaseAccumulator phase(config, at::kCPU);
  AttentionInput input;
  input.batch = &m.batch, input.k = m.k;
  phase.begin_layer(nullptr);
  phase.add(input);
  phase.store(layer);
  m.s.phase_gram = phase_gram(f, m.batch.lengths);
  m.s.phase_frequency = f.inverse.to(at::kDouble);
  return m;
}

TEST(PhaseMoments, MeanAndCovarianceBeforeRope) {
  for (const double bias : {0.0, 1.0, 300.0}) {
    const Made m = make(bias);
    const RotatedKeyMoments found = rotated_key_moments(m.s, 0);
    EXPECT_LT((found.mean - m.mean).abs().max().item<double>(), 1e-4 * (1.0 + bias)) << bias;
    const at::Tensor rows = m.centred.transpose(0, 1);
    const at::Tensor expected = at::matmul(rows.transpose(1, 2), rows) / static_cast<double>(m.s.tokens);
    EXPECT_LT((found.covariance - expected).abs().max().item<double>(), 1e-4 + 2e-6 * bias * bias) << bias;
    EXPECT_NEAR(expected.diagonal(0, 1, 2).mean().item<double>(), 1.0, 0.1);
  }
}

TEST(PhaseMoments, StoredSumsGoOn) {
  const Made m = make(2.0);
  ModelConfig config;
  config.head_dim = kDim, config.kv_heads = kHeads, config.query_heads = kHeads, config.max_position = 4096;
  SequenceBatch first{{0, 1}, {300, 41}, {0, 0}}, second{{2}, {700}, {0}};
  AttentionInput input;
  LayerMoments partial, whole;
  PhaseAccumulator a(config, at::kCPU), b(config, at::kCPU);
  a.begin_layer(nullptr);
  input.batch = &first, input.k = m.k.narrow(0, 0, 341);
  a.add(input);
  a.store(partial);
  b.begin_layer(&partial);
  input.batch = &second, input.k = m.k.narrow(0, 341, 700);
  b.add(input);
  b.store(whole);
  EXPECT_TRUE(at::allclose(whole.k_phase, m.s.layers[0].k_phase, 1e-12, 1e-9));
}

TEST(PhaseMoments, StatisticsWithoutThemSaySo) {
  Made m = make(1.0);
  m.s.layers[0].k_phase = at::Tensor();
  EXPECT_THROW(rotated_key_moments(m.s, 0), InputError);
}

}  // namespace
}  // namespace oscar
