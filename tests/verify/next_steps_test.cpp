// What a failed gate advises, from the facts of the report.
#include "verify/gates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "report/sample_report.h"
#include "transform/profile_allocation.h"

namespace oscar {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

VerifyReport failing() {
  VerifyReport r = sample_report({0.001, {}, {}, {}});
  r.bundles[0].method = "waterfill";
  return r;
}

TEST(NextSteps, NoneWhereNothingFailedOrOnlyTextIsMissing) {
  EXPECT_THAT(next_steps(sample_report({0.1, {}, {}, {}})), IsEmpty());
  VerifyReport few = sample_report({});
  few.scoring.sequences = 2;
  apply_gates({0.1, {}, {}, {}}, few);
  ASSERT_FALSE(few.pass);
  EXPECT_THAT(next_steps(few), IsEmpty()) << "the gate's own reason says how many sequences";
}

TEST(NextSteps, FewOrShortCalibrationComesFirst) {
  VerifyReport r = failing();
  r.bundles[0].calibration_tokens = 6000, r.bundles[0].longest_calibration = 100;
  EXPECT_THAT(next_steps(r),
              ElementsAre("calibrate on more text: 6,000 tokens were used, 30,000 are usual (--tokens)",
                          "calibrate on longer sequences: the longest had 100 tokens, and contexts of 384 are scored",
                          "spend more bits: oscar-fit --bits 3, then 4",
                          StartsWith("look at the layers that lose most (attention KL): 0 (0.001; keys 4-4-2-1")));
  r.bundles[0].calibration_tokens = 30000, r.bundles[0].longest_calibration = 384;
  EXPECT_EQ(next_steps(r).size(), 2u);
}

TEST(NextSteps, AMethodOfOneWidthIsToldOfTheOther) {
  VerifyReport r = failing();
  r.bundles[0].method = "oscar";
  EXPECT_THAT(next_steps(r), Contains(StartsWith("fit --method waterfill")));
}

// Curves whose KL falls by e with every bit: twice the predicted KL was measured, so the budget must allow for that.
TEST(NextSteps, TheBudgetThatPassesByTheCurves) {
  VerifyReport r = failing();
  Curves curves;
  curves.head_dim = 128, curves.context = 384, curves.sequences = 1;
  for (const Side side : {Side::kKey, Side::kValue}) {
    SideCurve curve;
    curve.side = side;
    for (const Widths& widths : falling_profiles()) {
      const double kl = 0.1 * std::exp(-profile_bits(widths, 128));
      curve.points.push_back({widths, kl, 0.0, {kl}});
    }
    curves.curves.push_back(curve);
  }
  r.bundles[0].curves = curves;
  r.methods[2].code_bits = 2.0, r.methods[2].quality.kl.mean = 0.06;
  r.bundles[0].prediction = PredictedKl{0.03, 0.0, 384, 64, 256};
  GateLimits limits;
  limits.max_kl = 0.02;
  apply_gates(limits, r);
  // 2 x 2 x 0.1 e^-b <= 0.02 from b = ln 20 = 2.996 on.
  EXPECT_THAT(next_steps(r), Contains(AllOf(StartsWith("spend 3 bits"), HasSubstr("--bits 3 --curves b/curves.json"))));
  limits.max_kl = 1e-9;
  apply_gates(limits, r);
  EXPECT_THAT(next_steps(r), Contains(StartsWith("no budget up to 4.25 bits passes")));
}

}  // namespace
}  // namespace oscar
