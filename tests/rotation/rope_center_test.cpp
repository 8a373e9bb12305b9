// Keys centred before RoPE: fits of keys whose bias is hundreds of times their signal.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "model/phase_table.h"
#include "moments/phase_moments.h"
#include "rotation/fit.h"
#include "rotation/made_statistics.h"

namespace oscar {
namespace {

constexpr std::int64_t kTokens = 2000, kDim = 64;

struct Made {
  MadeRows rows;
  Statistics s;
  at::Tensor phases;  // [T, d]
};

Made biased(double bias) {
  at::manual_seed(8);
  Made m{random_made_rows(kTokens, 4, 2, kDim), {}, {}};
  ModelConfig config;
  config.head_dim = kDim, config.kv_heads = 2, config.query_heads = 4, config.max_position = 4096;
  const RopeFrequencies f = rope_frequencies(config.rope, kDim, 4096);
  const SequenceBatch batch{{0}, {kTokens}, {0}};
  m.rows.k = apply_rope(m.rows.k + bias * at::randn({2, kDim}), rope_table(f, batch, at::kFloat, at::kCPU));
  m.s = made_statistics({m.rows});
  PhaseAccumulator phase(config, at::kCPU);
  AttentionInput input;
  input.batch = &batch, input.k = m.rows.k;
  phase.begin_layer(nullptr);
  phase.add(input);
  phase.store(m.s.layers[0]);
  m.s.phase_gram = phase_gram(f, {kTokens});
  m.s.phase_frequency = f.inverse.to(at::kDouble);
  std::vector<std::int64_t> positions;
  for (std::int64_t p = 0; p < kTokens; ++p) positions.push_back(p);
  m.phases = phase_rows(f, positions);
  for (std::size_t i = 0; i < m.s.layers[0].row_position.size(); ++i) {  // the rows kept are the first ones
    m.s.layers[0].row_position[i] = static_cast<std::int64_t>(i);
  }
  return m;
}

FitOptions options(Center center) {
  FitOptions o;
  o.method = "waterfill";
  o.scope = Scope::kHead;
  o.value_target = ValueTarget::kOutput;
  o.clip = ClipMode::kNone;
  o.encoder = Encoder::kSearch;
  o.center = center;
  o.sink = 0;
  return o;
}

TEST(RopeCenter, LargeBiasesLeaveNoTrace) {
  const Made small = biased(0.0), large = biased(300.0);
  const double reference = fit(small.s, options(Center::kMean)).layers[0].key.fit;
  const FitResult rope = fit(large.s, options(Center::kRope)), mean = fit(large.s, options(Center::kMean));
  const SideTransform& key = rope.layers[0].transform.key;
  EXPECT_TRUE(key.rotated_mean);
  EXPECT_FALSE(mean.layers[0].transform.key.rotated_mean);
  EXPECT_FALSE(rope.layers[0].transform.value.rotated_mean);
  EXPECT_TRUE(rope.layers[0].transform.value.mean.defined());
  // Relative to the logits' variance, in which the biases count: the errors themselves.
  const auto error = [](const Made& m, const FitResult& r) {
    return r.layers[0].key.fit * (m.rows.k - m.rows.k.mean(0)).square().sum().item<double>();
  };
  EXPECT_LT(error(large, rope), 0.1 * error(large, mean));
  // Who takes the plain mean is told.
  const auto told = [](const FitResult& r) {
    return std::any_of(r.warnings.begin(), r.warnings.end(),
                       [](const std::string& w) { return w.find("--center rope") != std::string::npos; });
  };
  EXPECT_TRUE(told(mean));
  EXPECT_FALSE(told(rope));
  EXPECT_FALSE(told(fit(small.s, options(Center::kMean))));
  EXPECT_GT(reference, 0.0);
  // q k^T is q' k'^T and the part of the rotated mean.
  const at::Tensor q = large.rows.q.select(1, 1).to(at::kDouble), k = large.rows.k.select(1, 0).to(at::kDouble);
  const at::Tensor turned = rotated_means(key.mean, large.phases).select(1, 0).to(at::kDouble);
  const at::Tensor stored = at::matmul(k - turned, key.forward[0].to(at::kDouble));
  const at::Tensor logits = at::matmul(at::matmul(q, key.inverse_or_query[0].to(at::kDouble)), stored.t());
  const at::Tensor exact = at::matmul(q, k.t());
  EXPECT_LT((logits + at::matmul(q, turned.t()) - exact).abs().max().item<double>(),
            1e-4 * exact.abs().max().item<double>());
  EXPECT_LT(stored.std().item<double>(), 2.0);  // unit blocks: the bias is gone
}

// Biases so large that what is left of the keys is rounding in most directions.
TEST(RopeCenter, BiasesBeyondFP32AreShrunkAndNamed) {
  for (const double bias : {30.0, 1e5}) {
    const FitResult result = fit(biased(bias).s, options(Center::kRope));
    const SideTransform& key = result.layers[0].transform.key;
    EXPECT_TRUE(at::isfinite(key.forward).all().item<bool>()) << bias;
    EXPECT_TRUE(at::isfinite(key.inverse_or_query).all().item<bool>()) << bias;
    EXPECT_TRUE(std::isfinite(result.layers[0].key.fit)) << bias;
    std::size_t named = 0;
    for (const std::string& warning : result.warnings) named += warning.starts_with("layer 0 keys head ") ? 1 : 0;
    EXPECT_EQ(named > 0, bias > 1e4) << bias;
  }
}

TEST(RopeCenter, OrthogonalMethodsTakeItToo) {
  const Made m = biased(20.0);
  FitOptions o = options(Center::kRope);
  o.method = "oscar", o.scope = Scope::kLayer, o.clip = ClipMode::kSearch;
  const FitResult rope = fit(m.s, o);
  o.center = Center::kMean;
  EXPECT_TRUE(rope.layers[0].transform.key.rotated_mean);
  EXPECT_LT(rope.layers[0].key.fit, 0.5 * fit(m.s, o).layers[0].key.fit);
}

TEST(RopeCenter, NeedsPhases) {
  Made m = biased(1.0);
  m.s.layers[0].k_phase = m.s.phase_gram = m.s.phase_frequency = at::Tensor();
  EXPECT_THROW(fit(m.s, options(Center::kRope)), InputError);
}

}  // namespace
}  // namespace oscar
