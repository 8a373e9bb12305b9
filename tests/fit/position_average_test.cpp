#include "fit/side_moments.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "collect/pre_rope_moments.h"
#include "fit/fit.h"
#include "fit/made_statistics.h"
#include "model/rope.h"
#include "support/metric_fit_options.h"

namespace oscar {
namespace {

at::Tensor random_gram(std::int64_t heads, std::int64_t d) {
  const at::Tensor x = at::randn({heads, 3 * d, d}, at::kDouble);
  return at::matmul(x.transpose(1, 2), x);
}

// R_p [d, d] FP64, column vectors, written out entry by entry.
at::Tensor rotation(const at::Tensor& frequency, double scale, std::int64_t d, std::int64_t p) {
  at::Tensor r = at::eye(d, at::kDouble);
  const std::int64_t pairs = frequency.size(0);
  for (std::int64_t i = 0; i < pairs; ++i) {
    const double angle = frequency[i].item<double>() * static_cast<double>(p);
    r[i][i] = r[i + pairs][i + pairs] = scale * std::cos(angle);
    r[i][i + pairs] = -scale * std::sin(angle);
    r[i + pairs][i] = scale * std::sin(angle);
  }
  return r;
}

double relative(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>() / b.abs().max().item<double>();
}

TEST(PositionAverage, EqualsTheSumOverPositions) {
  at::manual_seed(1);
  struct Case {
    at::Tensor frequency;
    double scale;
    Positions positions;
  };
  const std::int64_t d = 10;
  const std::vector<Case> cases = {
      {at::tensor({1.0, 0.3, 0.3, 1e-3, 1e-7}, at::kDouble), 1.0, {64, 500}},  // all channels turn; equal frequencies
      {at::tensor({1.0, 0.01, 0.0}, at::kDouble), 1.25, {3, 77}},              // some channels stay; a scale
      {at::empty({0}, at::kDouble), 1.0, {0, 40}},                             // no RoPE at all
      {at::tensor({0.9, 0.2, 1e-4, 1e-5, 1e-6}, at::kDouble), 1.0, {0, 1}},
  };
  for (const Case& c : cases) {
    const at::Tensor grams = random_gram(2, d), rows = at::randn({2, d}, at::kDouble) * 12.0;
    at::Tensor gram = at::zeros_like(grams), mean = at::zeros_like(rows), square = at::zeros_like(grams);
    const double n = static_cast<double>(c.positions.count);
    for (std::int64_t p = c.positions.first; p < c.positions.first + c.positions.count; ++p) {
      const at::Tensor r = rotation(c.frequency, c.scale, d, p), turned = at::matmul(rows, r.t());
      gram += at::matmul(at::matmul(r, grams), r.t()) / n;
      mean += turned / n;
      square += turned.unsqueeze(2) * turned.unsqueeze(1) / n;
    }
    const PositionAverage average(c.frequency, c.scale, d, c.positions);
    EXPECT_LT(relative(average.second_moment(grams), gram), 1e-12);
    EXPECT_LT(relative(average.mean(rows), mean), 1e-11);
    const at::Tensor spread = square - mean.unsqueeze(2) * mean.unsqueeze(1);
    EXPECT_LT((average.spread(rows) - spread).abs().max().item<double>(), 1e-10);
  }
}

TEST(PositionAverage, LongContextsKeepTheirDigits) {
  // Period 4: over whole periods the mean of everything that turns is zero, and of products one half.
  const double quarter = 1.5707963267948966;
  const PositionAverage average(at::tensor({quarter}, at::kDouble), 1.0, 2, {64, 131072});
  const at::Tensor gram = at::tensor({3.0, 1.0, 1.0, 5.0}, at::kDouble).view({2, 2});
  const at::Tensor expected = at::eye(2, at::kDouble) * 4.0;  // the mean of both, and no product left
  EXPECT_LT((average.second_moment(gram) - expected).abs().max().item<double>(), 1e-9);
  EXPECT_LT(average.mean(at::ones({2}, at::kDouble)).abs().max().item<double>(), 1e-9);
}

TEST(PositionAverage, ServedPositions) {
  const Positions usual = served_positions(4096, 64, 256);
  EXPECT_EQ(usual.first, 64);
  EXPECT_EQ(usual.count, 4096 - 64 - 256);
  for (const std::int64_t context : {1, 64, 320}) {  // nothing is served from codes
    EXPECT_EQ(served_positions(context, 64, 256).first, 0);
    EXPECT_EQ(served_positions(context, 64, 256).count, context);
  }
}

FitOptions options(std::int64_t context) {
  FitOptions o = metric_fit_options("balanced");
  o.context = context;
  return o;
}

// Position 0 turns nothing, and neither does a model without RoPE: the moments after RoPE, to the last digits.
TEST(PositionAverage, NothingTurnsInContextOne) {
  at::manual_seed(2);
  Statistics s = made_statistics({random_made_rows(800, 4, 2, 64)});
  const auto compare = [&](std::int64_t context) {
    for (const bool centered : {true, false}) {
      MomentChoice served = moment_choice(options(context), ValueTarget::kOutput, centered), as_collected = served;
      as_collected.served = {};
      const SideMoments a = side_moments(s, 0, Side::kKey, served);
      const SideMoments b = side_moments(s, 0, Side::kKey, as_collected);
      EXPECT_LT(relative(a.covariance, b.covariance), 1e-13);
      EXPECT_LT(relative(a.mean, b.mean), 1e-13);
      EXPECT_LT(relative(a.metric, b.metric), 1e-13);
      EXPECT_LT(relative(logit_moment(s, 0, served.served), logit_moment(s, 0, {})), 1e-13);
    }
  };
  compare(8192);  // its frequencies are zero
  s.rope_frequency = at::empty({0}, at::kDouble);
  compare(8192);
  s.rope_frequency = at::linspace(1.0, 1e-6, 32, at::kDouble);
  compare(1);
}

struct Turned {
  MadeRows rows;  // after RoPE
  Statistics s;
};

// Rows at `count` positions from `first` on of a model whose slow planes move little in 200 tokens.
Turned turned(const at::Tensor& bias, const at::Tensor& frequency, std::int64_t first, std::int64_t count) {
  constexpr std::int64_t kDim = 64;
  MadeRows rows = random_made_rows(count, 2, 2, kDim);
  rows.k = rows.k * 0.2 + bias;
  const RopeFrequencies f{frequency.to(at::kFloat), 1.0};
  const SequenceBatch batch{{0}, {count}, {first}};
  const RopeTable table = rope_table(f, batch, at::kFloat, at::kCPU);
  rows.k = apply_rope(rows.k.to(at::kFloat), table), rows.q = apply_rope(rows.q.to(at::kFloat), table);
  Turned t{rows, made_statistics({rows})};
  Unrotation unrotation(f, at::kCPU);
  PreRopeAccumulator before(2, kDim, at::kCPU);
  AttentionInput input;
  input.q = rows.q, input.k = rows.k;
  before.begin_layer();
  before.add(input, unrotation.rows_of(batch));
  before.finish(t.s.layers[0]);
  t.s.rope_frequency = frequency;
  return t;
}

// Squared error of the logits of far queries and keys, keys quantized with what was fitted.
double logit_error(const LayerTransform& t, const Turned& far) {
  double error = 0.0;
  for (std::int64_t h = 0; h < 2; ++h) {
    const at::Tensor q = far.rows.q.select(1, h).to(at::kDouble), k = far.rows.k.select(1, h).to(at::kDouble);
    at::Tensor stored = at::matmul(k - t.key.mean[h].to(at::kDouble), t.key.forward[h].to(at::kDouble));
    stored = stored.to(at::kFloat).contiguous();
    at::Tensor read = at::empty_like(stored);
    const RowCodec codec{t.key.code(64, 0), Side::kKey, Encoder::kSearch};
    quantize_rows(codec, stored.const_data_ptr<float>(), stored.size(0), 64, read.data_ptr<float>(), 64);
    const at::Tensor e = (read - stored).to(at::kDouble), centered = e - e.mean(0);
    error +=
        at::matmul(at::matmul(q, t.key.query_side[h].to(at::kDouble)), centered.t()).square().mean().item<double>();
  }
  return error;
}

TEST(PositionAverage, PlanesThatMoveOnlyBeyondTheCalibrationLength) {
  at::manual_seed(3);
  // Periods from 6 tokens to 30,000; biases of up to 12 times the signal in every plane.
  const at::Tensor frequency = at::pow(10.0, at::linspace(0.0, -3.7, 32, at::kDouble));
  const at::Tensor bias = at::randn({2, 64}) * 6.0;
  const Turned calibration = turned(bias, frequency, 0, 400), far = turned(bias, frequency, 6000, 2000);
  const LayerTransform close = fit(calibration.s, options(0)).layers[0].transform;
  const LayerTransform served = fit(calibration.s, options(8256)).layers[0].transform;
  const double without = logit_error(close, far), with = logit_error(served, far);
  EXPECT_LT(with, 0.5 * without);
  // As good as a fit to rows of all those positions.
  const Turned all = turned(bias, frequency, 64, 7936);
  EXPECT_LT(with, 1.2 * logit_error(fit(all.s, options(0)).layers[0].transform, far));
}

}  // namespace
}  // namespace oscar
