#include "verify/self_checks.h"

#include <gtest/gtest.h>

#include "report/sample_report.h"

namespace oscar {
namespace {

SelfCheck check_of(const VerifyReport& report, const std::string& name, const RunnerResult& run = {}) {
  for (const SelfCheck& c : self_checks(report, run, false)) {
    if (c.name == name) return c;
  }
  throw std::out_of_range(name);
}

// KL of the evaluated method by quarters of the positions.
VerifyReport with_kl(double a, double b, double c, double d, std::int64_t tokens = 2000) {
  VerifyReport r = sample_report({});
  r.methods[2].by_position = {
      {320, 400, tokens, a}, {400, 480, tokens, b}, {480, 560, tokens, c}, {560, 640, tokens, d}};
  return r;
}

TEST(SelfChecks, DriftWithLengthFails) {
  const SelfCheck steady = check_of(with_kl(0.001, 0.01, 0.012, 0.02), "drift");
  EXPECT_EQ(steady.pass, true);
  EXPECT_NEAR(*steady.value, 2.0, 1e-9);
  const SelfCheck drifting = check_of(with_kl(0.001, 0.01, 0.1, 0.5), "drift");
  EXPECT_EQ(drifting.pass, false);
  EXPECT_NEAR(*drifting.value, 50.0, 1e-9);
  EXPECT_NE(drifting.detail.find("oscar"), std::string::npos);
  EXPECT_EQ(check_of(with_kl(0, 0, 0, 1e-6), "drift").pass, true) << "noise of a nearly perfect method";
}

TEST(SelfChecks, DriftIsComparedWithTheRowOfOscar) {
  VerifyReport r = with_kl(0.001, 0.01, 0.02, 0.03);  // grows three times
  r.methods[2].id = "waterfill";
  EXPECT_EQ(check_of(r, "drift").pass, true);
  MethodReport oscar = r.methods[2];
  oscar.id = "oscar", oscar.evaluated = false;
  for (PositionBucket& b : oscar.by_position) b.kl = 0.05;  // does not grow
  r.methods.push_back(oscar);
  const SelfCheck faster = check_of(r, "drift");
  EXPECT_EQ(faster.pass, false);
  EXPECT_NEAR(*faster.limit, 2.0, 1e-9);
  EXPECT_NE(faster.detail.find("oscar's row grows 1 times"), std::string::npos) << faster.detail;
  r.methods.back().by_position.back().kl = 0.1;  // twice: at most four times is allowed to the bundle
  EXPECT_EQ(check_of(r, "drift").pass, true);
  r.methods.back().path = "decode";  // of another path: not its measure
  for (PositionBucket& b : r.methods.back().by_position) b.kl = 0.05;
  EXPECT_EQ(check_of(r, "drift").pass, true);
}

// One surprise among thousands of tokens made a bundle grow five times that has a KL of .0018.
TEST(SelfChecks, DriftThatIsNearlyLosslessPasses) {
  const SelfCheck harmless = check_of(with_kl(0.001, 0.0005, 0.001, 0.009), "drift");
  EXPECT_EQ(harmless.pass, true);
  EXPECT_NEAR(*harmless.value, 18.0, 1e-9);
  EXPECT_EQ(check_of(with_kl(0.001, 0.0005, 0.001, 0.011), "drift").pass, false);
}

// A few tokens of a heavy-tailed figure: three sequences failed a sound bundle.
TEST(SelfChecks, DriftNeedsEnoughTokensToSpeak) {
  const SelfCheck few = check_of(with_kl(0.001, 0.01, 0.1, 0.5, 900), "drift");
  EXPECT_EQ(few.pass, std::nullopt);
  EXPECT_NE(few.detail.find("900"), std::string::npos) << few.detail;
  EXPECT_EQ(check_of(with_kl(0.001, 0.01, 0.1, 0.5, 1000), "drift").pass, false);
}

TEST(SelfChecks, DriftNeedsAnEvaluatedMethodAndPositions) {
  VerifyReport r = with_kl(1, 1, 1, 100);
  r.methods[2].evaluated = false;
  EXPECT_EQ(check_of(r, "drift").pass, std::nullopt);
  r.methods[2].evaluated = true;
  r.methods[2].by_position.resize(1);
  EXPECT_EQ(check_of(r, "drift").pass, std::nullopt);
}

TEST(SelfChecks, EveryEvaluatedMethodHasToBeatTheNegativeControl) {
  VerifyReport r = with_kl(1, 1, 1, 1);
  EXPECT_EQ(check_of(r, "negative_control").pass, true);
  r.methods.push_back(sample_method("another", 3.0, true));
  EXPECT_EQ(check_of(r, "negative_control").pass, false);
  const VerifyReport worse = r;
  for (MethodReport& m : r.methods) m.comparison = "authors";
  EXPECT_EQ(check_of(r, "negative_control").pass, std::nullopt);
  EXPECT_NE(check_of(r, "negative_control").detail.find("other BF16 windows"), std::string::npos);
  r = worse;
  r.methods.erase(r.methods.begin() + 1);  // naive2
  EXPECT_EQ(check_of(r, "negative_control").pass, std::nullopt);
  EXPECT_EQ(check_of(r, "negative_control").detail, "no naive2 beside a bundle (--methods naive2)");
  r.left_out.push_back({"naive2", "bytes", "it takes more than 1.5 bits"});
  EXPECT_EQ(check_of(r, "negative_control").detail, "naive2 was left out (bytes): it takes more than 1.5 bits");
}

TEST(SelfChecks, TheNullRunHasToBeExact) {
  const VerifyReport report = sample_report({});
  EXPECT_EQ(check_of(report, "null_run").pass, true);
  RunnerResult run;
  run.null_kl = 1e-16;
  EXPECT_EQ(check_of(report, "null_run", run).pass, false);
}

TEST(SelfChecks, OneRowWrittenOtherwiseOrReadOtherwiseFails) {
  const VerifyReport report = sample_report({});
  EXPECT_EQ(check_of(report, "writer_reader").pass, std::nullopt) << "nothing was compared";
  RunnerResult run;
  run.caches = {{100, 0, 300, 0, 5e-6, 1000}, {100, 0, 300, 0, 9e-5, 1000}};
  EXPECT_EQ(check_of(report, "writer_reader", run).pass, true);
  run.caches[1].differing = 1;
  EXPECT_EQ(check_of(report, "writer_reader", run).pass, false);
  run.caches[1] = {100, 0, 300, 1, 9e-5, 1000};
  EXPECT_EQ(check_of(report, "writer_reader", run).pass, false);
  run.caches[1] = {100, 0, 300, 0, 2e-4, 1000};
  EXPECT_EQ(check_of(report, "writer_reader", run).pass, false);
}

// Whichever of the five fails, the report fails with it.
TEST(SelfChecks, EachFailsTheReport) {
  const auto passes = [](VerifyReport report, const RunnerResult& run) {
    report.checks = self_checks(report, run, false);
    apply_gates({}, report);
    return report.pass;
  };
  const VerifyReport good = with_kl(0.01, 0.01, 0.01, 0.01);
  EXPECT_TRUE(passes(good, {}));
  RunnerResult null;
  null.null_kl = 1e-9;
  EXPECT_FALSE(passes(good, null));
  RunnerResult cache;
  cache.caches = {{10, 3, 10, 0, 0.0, 1000}};
  EXPECT_FALSE(passes(good, cache));
  VerifyReport worse = good;
  worse.methods[2].quality.kl.mean = 2 * worse.methods[1].quality.kl.mean;
  EXPECT_FALSE(passes(worse, {}));
  EXPECT_FALSE(passes(with_kl(0.01, 0.01, 0.1, 0.5), {}));
  KvMethod method;
  method.id = "oscar";
  RunnerResult paths;
  paths.scored = {{&method, "decode"}};
  SequenceScores scores{0, {1.0}, {1.0}, {0.1}, {1}};
  paths.scores.add_group({{scores}}, {});
  paths.path_difference.push_back({});
  EXPECT_TRUE(passes(good, paths));
  paths.path_difference[0].mean = 0.05;
  EXPECT_FALSE(passes(good, paths));
}

}  // namespace
}  // namespace oscar
