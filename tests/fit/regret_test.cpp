// Regret of fitted transforms on other traffic: known answers on made rows.
#include "fit/regret.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/errors.h"
#include "fit/fit.h"
#include "fit/made_statistics.h"
#include "support/metric_fit_options.h"

namespace oscar {
namespace {

using testing::HasSubstr;

FitOptions options_for(const std::string& method, double bits = 2.0) {
  FitOptions o = metric_fit_options(method);
  o.bits = bits;
  return o;
}

std::vector<LayerTransform> transforms(const FitResult& result) {
  std::vector<LayerTransform> out;
  for (const LayerFit& layer : result.layers) out.push_back(layer.transform);
  return out;
}

TEST(Regret, NoneOnTheStatisticsOfTheFit) {
  at::manual_seed(1);
  const Statistics s = made_statistics({random_made_rows(3000, 4, 2, 64), random_made_rows(3000, 4, 2, 64)});
  for (const char* method : {"balanced", "waterfill"}) {
    const FitOptions o = options_for(method);
    const Regret regret = measure_regret(transforms(fit(s, o)), s, o);
    ASSERT_EQ(regret.layers.size(), 2u);
    EXPECT_NEAR(regret.total.ratio(), 1.0, 1e-4) << method;
    EXPECT_GT(regret.total.refit, 0.0);
    EXPECT_LE(regret.moved, regret.total.refit);
    EXPECT_GT(regret.moved, 0.5 * regret.total.refit);
  }
}

// A bundle whose means are elsewhere stores the distance with every row.
TEST(Regret, MovedMeansCost) {
  at::manual_seed(3);
  std::vector<MadeRows> rows = {random_made_rows(3000, 4, 2, 64)};
  const FitOptions o = options_for("balanced");
  const std::vector<LayerTransform> bundle = transforms(fit(made_statistics(rows), o));
  double last = 1.0;
  for (const double distance : {1.0, 2.0, 4.0}) {
    std::vector<MadeRows> moved = rows;
    moved[0].v = rows[0].v + distance;
    const Regret regret = measure_regret(bundle, made_statistics(moved), o);
    EXPECT_NEAR(regret.layers[0].key.ratio(), 1.0, 0.02);
    EXPECT_GT(regret.layers[0].value.ratio(), 1.3 * last);
    last = regret.layers[0].value.ratio();
  }
}

// The formula on numbers: identity transforms, white rows of variance 4, metric 3 I, plain queries 2 I.
TEST(Regret, PredictedErrorOfKnownMoments) {
  const std::int64_t d = 64;
  const at::Tensor eye = at::eye(d, at::kDouble).unsqueeze(0);
  SideTransform t;
  t.forward = t.query_side = t.inverse = eye.to(at::kFloat);
  t.mean = at::zeros({1, d});
  const SideMoments m{at::zeros({1, d}, at::kDouble), 4.0 * eye, 3.0 * eye};
  const double value = predicted_side_error(t, {4, 2, 1, 0}, Side::kValue, m, {}, 10.0);
  EXPECT_NEAR(value, 16.0 * 12.0 * (0.0115 + 0.1188 + 0.3634 + 1.0) / 10.0, 1e-6);
  const double shares = 0.0116 + 0.133 + 0.571;
  const double noise = 4.0 * 2.0 * 16.0 * shares / 64.0;  // variance of a logit
  const at::Tensor queries = 2.0 * eye / 64.0;            // times the scale of logits, squared
  const double key = predicted_side_error(t, {4, 2, 1, 0}, Side::kKey, m, queries, 10.0);
  EXPECT_NEAR(key, 16.0 * 12.0 * (shares + 1.0) / 10.0 * std::expm1(noise) / noise, 1e-6);
  // No bits, no noise in the logits; means that moved by one add one to each variance.
  EXPECT_NEAR(predicted_side_error(t, {0, 0, 0, 0}, Side::kKey, m, queries, 1.0), 64.0 * 12.0, 1e-9);
  t.mean = at::ones({1, d});
  EXPECT_NEAR(predicted_side_error(t, {4, 4, 4, 4}, Side::kValue, m, {}, 1.0), 64.0 * 5.0 * 3.0 * 0.0115, 1e-6);
  t.mean = at::Tensor();  // stored about zero: the moments are given so
  EXPECT_NEAR(predicted_side_error(t, {}, Side::kValue, m, {}, 1.0), 64.0 * 12.0 * 0.1188, 1e-6);
}

TEST(Regret, RefusesOtherGeometryAndOrthogonalTransforms) {
  at::manual_seed(4);
  const Statistics s = made_statistics({random_made_rows(500, 4, 2, 64)});
  const FitOptions o = options_for("waterfill");
  const std::vector<LayerTransform> bundle = transforms(fit(s, o));
  const auto message = [&](const Statistics& other, const std::vector<LayerTransform>& layers) -> std::string {
    try {
      measure_regret(layers, other, o);
    } catch (const InputError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_THAT(message(made_statistics({random_made_rows(500, 4, 2, 32)}), bundle), HasSubstr("size 64"));
  EXPECT_THAT(message(made_statistics({random_made_rows(99, 4, 2, 64), random_made_rows(99, 4, 2, 64)}), bundle),
              HasSubstr("1 layers"));
  FitOptions published;
  published.clip = ClipMode::kNone;
  EXPECT_THAT(message(s, transforms(fit(s, published))), HasSubstr("orthogonal"));
}

}  // namespace
}  // namespace oscar
