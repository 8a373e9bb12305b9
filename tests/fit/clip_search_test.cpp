// The clip search on rows whose answer is known: how layers are weighed against each other, and what it prefers.
#include "fit/clip_search.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "fit/fit.h"
#include "made_statistics.h"

namespace oscar {
namespace {

constexpr std::int64_t kTokens = 400, kDim = 64;

// Values with a channel 0 that spans fifty times the others and that nothing reads: most of a row must be clipped.
MadeRows spoilt_rows() {
  MadeRows rows = random_made_rows(kTokens, 2, 2, kDim);
  rows.v = at::randn({kTokens, 2, kDim});
  rows.v.select(2, 0).fill_(50.0);
  return rows;
}

// Values that sit on four levels, the highest of them once in each row: the codes are exact, and every clip does harm.
MadeRows exact_rows() {
  MadeRows rows = random_made_rows(kTokens, 2, 2, kDim);
  rows.v = 2.0 * at::randint(0, 3, {kTokens, 2, kDim}).to(at::kFloat) - 1.0;
  rows.v.select(2, 5).fill_(5.0);
  return rows;
}

// Statistics of both layers, with far-pair metrics: `weight` of layer i is how much its errors move the output.
Statistics two_layers(double first_weight, double second_weight) {
  Statistics s = made_statistics({spoilt_rows(), exact_rows()});
  for (std::size_t i = 0; i < 2; ++i) {
    LayerMoments& m = s.layers[i];
    at::Tensor read = at::eye(kDim, at::kDouble);
    if (i == 0) read[0][0] = 1e-12;
    m.far_v_weight = (read * (i == 0 ? first_weight : second_weight) * 100.0).unsqueeze(0).repeat({2, 1, 1});
    m.far_q_gram = at::eye(kDim, at::kDouble).unsqueeze(0).repeat({2, 1, 1});
    m.far_count = at::tensor({100.0, 5000.0, 100.0}, at::kDouble);
  }
  return s;
}

FitOptions options() {
  FitOptions o;
  o.method = "identity";
  o.clip = ClipMode::kSearch;
  return o;
}

TEST(ClipSearch, EachLayerGetsItsOwn) {
  at::manual_seed(1);
  const FitResult result = fit(two_layers(1.0, 1.0), options());
  EXPECT_GT(result.layers[0].transform.value.clip[0], 0.0f);
  EXPECT_LT(result.layers[0].transform.value.clip[0], 1.0f);
  EXPECT_EQ(result.layers[1].transform.value.clip[0], 0.0f);
}

TEST(ClipSearch, TheOneClipFollowsTheLayerWhoseErrorsWeigh) {
  at::manual_seed(1);
  const FitResult first = fit(two_layers(1.0, 1e-9), options());
  EXPECT_EQ(first.global_value_clip, first.layers[0].transform.value.clip[0]);
  at::manual_seed(1);
  const FitResult second = fit(two_layers(1e-9, 1.0), options());
  EXPECT_EQ(second.global_value_clip, 0.0f);
}

TEST(ClipSearch, PredictionsOfLayersAddUp) {
  at::manual_seed(1);
  const FitResult result = fit(two_layers(1e-9, 1.0), options());
  double own = 0.0, one = 0.0;
  for (const LayerFit& layer : result.layers) own += layer.value.error, one += layer.value.one_clip_error;
  EXPECT_GE(one, own);
  // Unread errors of the spoilt layer: large beside its own rows, nothing beside the residual stream.
  EXPECT_GT(result.layers[0].value.one_clip_error, 10.0 * result.layers[0].value.error);
  EXPECT_LT(one, 1e-3);
}

TEST(ClipSearch, OneClipIsThatOfEveryLayer) {
  at::manual_seed(1);
  FitOptions o = options();
  o.one_clip = true;
  const FitResult result = fit(two_layers(1.0, 1e-9), o);
  EXPECT_GT(result.global_value_clip, 0.0f);
  for (const LayerFit& layer : result.layers) {
    EXPECT_EQ(layer.transform.value.clip, std::vector<float>{result.global_value_clip});
    EXPECT_EQ(layer.transform.key.clip, std::vector<float>{result.global_key_clip});
  }
}

// Gaussian rows: the optimum is flat, and the published ratio is within a few per cent of it.
TEST(ClipSearch, ThePublishedRatioStaysWhereTheSearchIsNotClearlyAhead) {
  at::manual_seed(2);
  MadeRows rows = random_made_rows(kTokens, 2, 2, kDim);
  rows.v = at::randn({kTokens, 2, kDim});
  rows.o_weight = at::eye(2 * kDim);
  const FitResult result = fit(made_statistics({rows}), options());
  EXPECT_EQ(result.layers[0].transform.value.clip[0], kPublishedValueClip);
  EXPECT_EQ(result.global_value_clip, kPublishedValueClip);
}

}  // namespace
}  // namespace oscar
