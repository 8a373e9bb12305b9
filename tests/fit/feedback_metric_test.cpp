// The metrics that encoder feedback gets from a fit.
#include "transform/feedback_metric.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "fit/fit.h"
#include "fit/made_statistics.h"

namespace oscar {
namespace {

FitOptions options_for(const std::string& method) {
  FitOptions o;
  o.method = method;
  o.scope = method == "oscar" ? Scope::kLayer : Scope::kHead;
  o.value_target = ValueTarget::kOutput;
  o.clip = ClipMode::kNone;
  o.encoder = Encoder::kFeedback;
  o.center = method == "oscar" ? Center::kNone : Center::kMean;
  return o;
}

// In the basis of the cache the metric of a balanced head is diagonal between blocks, and inside one it is
// Z^T diag(Lambda) Z with mean diagonal as large as its share: never the identity, unless Lambda is flat.
TEST(FeedbackMetricFit, ComesWithTheFitAndLowersItsError) {
  at::manual_seed(5);
  const std::vector<MadeRows> layers = {random_made_rows(3000, 4, 2, 64)};
  const Statistics s = made_statistics(layers);
  for (const char* method : {"oscar", "balanced", "blocks"}) {
    const bool blocks = std::string(method) == "blocks";
    FitOptions o = options_for(blocks ? "balanced" : method);
    if (blocks) o.key_widths = {4, 2, 1, 1}, o.value_widths = {4, 2, 1, 0};
    FitOptions plain = o;
    plain.encoder = Encoder::kSearch;
    const FitResult with = fit(s, o), without = fit(s, plain);
    const std::int64_t n = with.layers[0].transform.key.blocks() ? 16 : 64;
    for (const SideTransform* side : {&with.layers[0].transform.key, &with.layers[0].transform.value}) {
      ASSERT_TRUE(side->metric.defined()) << method;
      EXPECT_EQ(side->metric.sizes(), at::IntArrayRef({2, 64, n}));
      const at::Tensor blocks = side->metric.view({2, 64 / n, n, n});
      EXPECT_LT((blocks - blocks.transpose(2, 3)).abs().max().item<double>(), 1e-5);
      EXPECT_NEAR(blocks.diagonal(0, 2, 3).mean().item<double>(), 1.0, 1e-4);
    }
    EXPECT_FALSE(without.layers[0].transform.key.metric.defined());
    EXPECT_LT(with.layers[0].key.fit, without.layers[0].key.fit) << method;
    EXPECT_LT(with.layers[0].value.fit, 1.001 * without.layers[0].value.fit) << method;
  }
}

// Queries that look everywhere alike leave the identity, whatever the rows are.
TEST(FeedbackMetricFit, EqualQueriesLeaveTheIdentity) {
  at::manual_seed(6);
  MadeRows rows = random_made_rows(64, 2, 2, 32);
  rows.q = at::eye(32).repeat({2, 1}).unsqueeze(1).expand({64, 2, 32}).contiguous();
  FitOptions o = options_for("oscar");
  o.method = "hadamard";
  const FitResult result = fit(made_statistics({rows}), o);
  const at::Tensor metric = result.layers[0].transform.key.metric;
  EXPECT_LT((metric - at::eye(32)).abs().max().item<double>(), 1e-6);
}

TEST(FeedbackMetricFit, ReadersGetTheirHead) {
  SideTransform side;
  EXPECT_EQ(feedback_metric(side, uniform_code(32), 0), nullptr);
  side.metric = at::stack({at::eye(32), 2 * at::eye(32) + 1});
  EXPECT_TRUE(feedback_metric(side, uniform_code(32), 0)->flat(0));
  EXPECT_FALSE(feedback_metric(side, uniform_code(32), 1)->flat(0));
}

}  // namespace
}  // namespace oscar
