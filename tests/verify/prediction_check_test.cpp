// The self check of a bundle's own prediction, on made reports.
#include "verify/self_checks.h"

#include <gtest/gtest.h>

#include <cmath>

namespace oscar {
namespace {

// One evaluated bundle that predicts .002 for context 2048, and costs `kl`.
VerifyReport made_report(double kl) {
  VerifyReport r;
  r.scoring.context = 2048;
  BundleFacts bundle;
  bundle.row = "waterfill";
  bundle.prediction = PredictedKl{0.002, 0.0001, 2048, 64, 256};
  r.bundles.push_back(bundle);
  MethodReport m;
  m.id = "waterfill", m.path = "prefill", m.comparison = "common", m.evaluated = true;
  m.quality.kl.mean = kl;
  r.methods.push_back(m);
  return r;
}

TEST(PredictionCheck, MeasuredOverPredictedUpToFourEitherWay) {
  for (const auto& [kl, pass] :
       {std::pair{0.002, true}, {0.0079, true}, {0.0081, false}, {0.00051, true}, {0.00049, false}}) {
    VerifyReport r = made_report(kl);
    r.bundles[0].prediction->error = 0.0;
    const SelfCheck check = prediction_check(r);
    EXPECT_EQ(check.pass, pass) << kl;
    EXPECT_NEAR(check.value.value(), kl / 0.002, 1e-12);
    EXPECT_NE(check.detail.find("measured curves predict"), std::string::npos);
  }
  // The prediction's error of 5 % widens a factor of 4 to 4.42.
  for (const auto& [kl, pass] : {std::pair{0.00883, true}, {0.00886, false}, {0.000453, true}, {0.000451, false}}) {
    EXPECT_EQ(prediction_check(made_report(kl)).pass, pass) << kl;
  }
}

// One surprising token of few is no proof, in either direction; the same mean over many tokens is.
TEST(PredictionCheck, ChanceIsNoFailure) {
  VerifyReport r = made_report(0.0119);
  r.methods[0].quality.kl.standard_error = 0.0046;
  EXPECT_EQ(prediction_check(r).pass, true);
  r.methods[0].quality.kl.standard_error = 0.0003;
  EXPECT_EQ(prediction_check(r).pass, false);
  r = made_report(0.0119);
  r.bundles[0].prediction->error = 0.0015;
  EXPECT_EQ(prediction_check(r).pass, true);
}

// A failure counts before a larger ratio that chance explains.
TEST(PredictionCheck, FailureIsToldBeforeALargerRatio) {
  for (const bool failure_first : {false, true}) {
    VerifyReport r = made_report(0.1);
    r.methods[0].quality.kl.standard_error = 0.2;
    r.bundles.push_back(r.bundles[0]);
    r.methods.push_back(r.methods[0]);
    r.bundles[1].row = r.methods[1].id = "other";
    r.methods[1].quality.kl.mean = 0.02, r.methods[1].quality.kl.standard_error = 0.0001;
    if (failure_first) std::swap(r.bundles[0], r.bundles[1]);
    const SelfCheck check = prediction_check(r);
    EXPECT_EQ(check.pass, false);
    EXPECT_NEAR(check.value.value(), 10.0, 1e-9);
  }
}

TEST(PredictionCheck, WorstOfSeveralBundlesCounts) {
  VerifyReport r = made_report(0.003);
  r.bundles.push_back(r.bundles[0]);
  r.methods.push_back(r.methods[0]);
  r.bundles[1].row = r.methods[1].id = "other";
  r.methods[1].quality.kl.mean = 0.0002;
  const SelfCheck check = prediction_check(r);
  EXPECT_EQ(check.pass, false);
  EXPECT_NEAR(check.value.value(), 0.1, 1e-12);
}

TEST(PredictionCheck, NotApplicableElsewhere) {
  VerifyReport r = made_report(1.0);
  r.scoring.context = 8192;
  EXPECT_EQ(prediction_check(r).pass, std::nullopt);
  EXPECT_NE(prediction_check(r).detail.find("not those of this run"), std::string::npos);
  r = made_report(1.0);
  r.recent = 128;
  EXPECT_EQ(prediction_check(r).pass, std::nullopt);
  r = made_report(1.0);
  r.methods[0].path = "decode";
  EXPECT_EQ(prediction_check(r).pass, std::nullopt);
  r = made_report(1.0);
  r.bundles[0].prediction.reset();
  EXPECT_EQ(prediction_check(r).detail, "no bundle that predicts its KL");
}

// Both so small that they are sums of roundings: no reason to fail.
TEST(PredictionCheck, RoundingsAreNotCompared) {
  VerifyReport r = made_report(1e-9);
  r.bundles[0].prediction->kl = 1e-6;
  EXPECT_EQ(prediction_check(r).pass, true);
}

}  // namespace
}  // namespace oscar
