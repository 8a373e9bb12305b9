// Keys centered before RoPE: fits of keys whose bias is hundreds of times their signal.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "collect/pre_rope_moments.h"
#include "fit/fit.h"
#include "fit/key_center.h"
#include "fit/made_statistics.h"
#include "model/rope_phases.h"
#include "support/metric_fit_options.h"

namespace oscar {
namespace {

constexpr std::int64_t kTokens = 2000, kDim = 64;

struct Made {
  MadeRows rows;
  Statistics s;
  at::Tensor rope_phases;  // [T, d]
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
  Unrotation unrotation(f, at::kCPU);
  PreRopeAccumulator before(2, kDim, at::kCPU);
  AttentionInput input;
  input.k = m.rows.k, input.q = m.rows.q;
  before.begin_layer();
  before.add(input, unrotation.rows_of(batch));
  before.finish(m.s.layers[0]);
  m.s.rope_frequency = f.inverse.to(at::kDouble);
  std::vector<std::int64_t> positions;
  for (std::int64_t p = 0; p < kTokens; ++p) positions.push_back(p);
  m.rope_phases = phase_rows(f, positions);
  for (std::size_t i = 0; i < m.s.layers[0].row_position.size(); ++i) {  // the rows kept are the first ones
    m.s.layers[0].row_position[i] = static_cast<std::int64_t>(i);
  }
  return m;
}

FitOptions options(Center center) {
  FitOptions o = metric_fit_options("waterfill");
  o.center = center;
  o.sink = 0, o.recent = 0;
  o.context = kTokens;  // the positions that the rows have
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
  const at::Tensor turned = rotated_means(key.mean, large.rope_phases).select(1, 0).to(at::kDouble);
  const at::Tensor stored = at::matmul(k - turned, key.forward[0].to(at::kDouble));
  const at::Tensor logits = at::matmul(at::matmul(q, key.query_side[0].to(at::kDouble)), stored.t());
  const at::Tensor exact = at::matmul(q, k.t());
  EXPECT_LT((logits + at::matmul(q, turned.t()) - exact).abs().max().item<double>(),
            1e-4 * exact.abs().max().item<double>());
  EXPECT_LT(stored.std().item<double>(), 2.0);  // unit blocks: the bias is gone
}

// Sums are taken before RoPE, where a bias does not turn, about the mean of each chunk: FP32 leaves the signal.
TEST(RopeCenter, BiasesFarBeyondTheSignal) {
  const double plain = fit(biased(0.0).s, options(Center::kRope)).layers[0].key_spectrum.lambda[0];
  for (const double bias : {30.0, 1e4}) {
    const FitResult result = fit(biased(bias).s, options(Center::kRope));
    const SideTransform& key = result.layers[0].transform.key;
    EXPECT_TRUE(at::isfinite(key.forward).all().item<bool>()) << bias;
    EXPECT_TRUE(at::isfinite(key.query_side).all().item<bool>()) << bias;
    EXPECT_NEAR(result.layers[0].key_spectrum.lambda[0], plain, 0.05 * plain) << bias;
  }
}

// What rounding left indefinite is made definite, and the size of the noise is told.
TEST(RopeCenter, IndefiniteCovariancesAreRaisedToTheirNoise) {
  at::Tensor m = at::eye(4, at::kDouble) * 9.0;
  m[0][1] = m[1][0] = 9.18;  // eigenvalues 2.02 and -.02, in units of the channels
  double noise = 0.0;
  const at::Tensor definite = without_noise(m, 1e-3, std::int64_t{1} << 40, noise);
  ASSERT_TRUE(definite.defined());
  EXPECT_NEAR(noise, 0.02, 1e-9);
  EXPECT_NEAR(std::get<0>(at::linalg_eigh(definite))[0].item<double>(), 9.0 * 0.02, 1e-9);
  EXPECT_FALSE(without_noise(at::eye(4, at::kDouble), 1e-3, 100, noise).defined());
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

// The default: the mean before RoPE where it takes away more than that of the cached keys.
TEST(RopeCenter, AutoTakesItWhereItPays) {
  const Made plain = biased(0.0), large = biased(3.0);
  Statistics both = large.s;
  both.layers.push_back(plain.s.layers[0]);
  const FitOptions o = options(Center::kAuto);
  const std::vector<double> gains =
      rotated_mean_gains(both, o, fitted_moments(both, options(Center::kMean), Side::kKey, true));
  EXPECT_LT(gains.at(0), 0.5);
  EXPECT_GT(gains.at(1), 0.95);
  const FitResult result = fit(both, o);
  EXPECT_TRUE(result.layers[0].transform.key.rotated_mean);
  EXPECT_FALSE(result.layers[1].transform.key.rotated_mean);
  EXPECT_TRUE(result.layers[1].transform.key.mean.defined());
  EXPECT_TRUE(at::equal(result.layers[0].transform.key.forward,
                        fit(large.s, options(Center::kRope)).layers[0].transform.key.forward));
  EXPECT_TRUE(at::equal(result.layers[1].transform.key.forward,
                        fit(plain.s, options(Center::kMean)).layers[0].transform.key.forward));
  for (const std::string& w : result.warnings) EXPECT_EQ(w.find("--center"), std::string::npos) << w;
}

// Layout uniform, the positions of the prompts, a part of the channels rotated, statistics without moments before RoPE:
// the mean of cached keys.
TEST(RopeCenter, AutoTakesThePlainMeanWhereItMust) {
  const Made m = biased(3.0);
  EXPECT_TRUE(fitted_moments(m.s, options(Center::kAuto), Side::kKey, true).front().rotated);
  EXPECT_FALSE(fitted_moments(m.s, options(Center::kAuto), Side::kKey, false).front().rotated);
  FitOptions o = options(Center::kAuto);
  o.context = 0;
  EXPECT_FALSE(fitted_moments(m.s, o, Side::kKey, true).front().rotated);
  EXPECT_FALSE(fit(m.s, o).layers[0].transform.key.rotated_mean);
  Made partial = m;
  partial.s.rope_frequency = m.s.rope_frequency.narrow(0, 0, kDim / 4);
  EXPECT_FALSE(fitted_moments(partial.s, options(Center::kAuto), Side::kKey, true).front().rotated);
}

TEST(RopeCenter, NeedsMomentsBeforeRope) {
  Made m = biased(1.0);
  m.s.layers[0].pre_k_gram = m.s.layers[0].pre_k_sum = at::Tensor();
  EXPECT_THROW(fit(m.s, options(Center::kRope)), InputError);
}

}  // namespace
}  // namespace oscar
