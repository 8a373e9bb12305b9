// The self check of a bundle's own prediction, on made reports.
#include "verify/prediction_check.h"

#include <gtest/gtest.h>

#include <cmath>

namespace oscar {
namespace {

const std::vector<RowPrediction> kPredicted{{"waterfill", {0.002, 0.0001, 2048, 64, 256}}};

// One judged method that costs `kl` at context 2048.
VerifyReport made_report(double kl) {
  VerifyReport r;
  r.scoring.context = 2048;
  MethodReport m;
  m.id = "waterfill", m.path = "prefill", m.comparison = "common", m.judged = true;
  m.quality.kl.mean = kl;
  r.methods.push_back(m);
  return r;
}

TEST(PredictionCheck, MeasuredOverPredictedUpToFourEitherWay) {
  for (const auto& [kl, pass] :
       {std::pair{0.002, true}, {0.0079, true}, {0.0081, false}, {0.00051, true}, {0.00049, false}}) {
    const SelfCheck check = prediction_check(made_report(kl), kPredicted);
    EXPECT_EQ(check.pass, pass) << kl;
    EXPECT_NEAR(check.value.value(), kl / 0.002, 1e-12);
    EXPECT_NE(check.detail.find("measured curves predict"), std::string::npos);
  }
}

TEST(PredictionCheck, WorstOfSeveralBundlesCounts) {
  VerifyReport r = made_report(0.003);
  r.methods.push_back(r.methods[0]);
  r.methods[1].id = "other";
  r.methods[1].quality.kl.mean = 0.0002;
  const SelfCheck check = prediction_check(r, {kPredicted[0], {"other", kPredicted[0].predicted}});
  EXPECT_EQ(check.pass, false);
  EXPECT_NEAR(check.value.value(), 0.1, 1e-12);
}

TEST(PredictionCheck, NotApplicableElsewhere) {
  VerifyReport r = made_report(1.0);
  r.scoring.context = 8192;
  EXPECT_EQ(prediction_check(r, kPredicted).pass, std::nullopt);
  EXPECT_NE(prediction_check(r, kPredicted).detail.find("not those of this run"), std::string::npos);
  r = made_report(1.0);
  r.recent = 128;
  EXPECT_EQ(prediction_check(r, kPredicted).pass, std::nullopt);
  r = made_report(1.0);
  r.methods[0].path = "decode";
  EXPECT_EQ(prediction_check(r, kPredicted).pass, std::nullopt);
  EXPECT_EQ(prediction_check(made_report(1.0), {}).detail, "no bundle that predicts its KL");
}

// Both so small that they are sums of roundings: no reason to fail.
TEST(PredictionCheck, RoundingsAreNotCompared) {
  EXPECT_EQ(prediction_check(made_report(1e-9), {{"waterfill", {1e-6, 0.0, 2048, 64, 256}}}).pass, true);
}

}  // namespace
}  // namespace oscar
