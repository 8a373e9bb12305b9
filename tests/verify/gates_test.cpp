#include "verify/gates.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/errors.h"
#include "report/sample_report.h"

namespace oscar {
namespace {

MethodReport with_values(double kl, double ratio, double top1, std::optional<double> niah) {
  MethodReport m;
  m.id = "oscar";
  m.path = "prefill";
  m.evaluated = true;
  m.quality.kl.mean = kl;
  m.quality.ppl_ratio = ratio;
  m.quality.same_top1 = top1;
  m.quality.kl.interval = Interval{kl, kl};
  m.quality.ppl_ratio_interval = Interval{ratio, ratio};
  m.quality.same_top1_interval = Interval{top1, top1};
  TaskScore task;
  task.task = "niah";
  task.score = niah;
  if (niah) task.interval = Interval{*niah, *niah};
  m.tasks = {task};
  return m;
}

TEST(Gates, TruthTable) {
  const GateLimits limits{0.1, 1.05, 0.9, 0.8};
  const auto verdicts = [&](const MethodReport& m) {
    std::vector<bool> v;
    for (const GateResult& g : evaluate_gates(limits, m, 8)) v.push_back(g.pass);
    return v;
  };
  EXPECT_EQ(verdicts(with_values(0.1, 1.05, 0.9, 0.8)), (std::vector<bool>{true, true, true, true}));  // limits hold
  EXPECT_EQ(verdicts(with_values(0.11, 1.0, 1.0, 1.0)), (std::vector<bool>{false, true, true, true}));
  EXPECT_EQ(verdicts(with_values(0.0, 1.06, 1.0, 1.0)), (std::vector<bool>{true, false, true, true}));
  EXPECT_EQ(verdicts(with_values(0.0, 1.0, 0.89, 1.0)), (std::vector<bool>{true, true, false, true}));
  EXPECT_EQ(verdicts(with_values(0.0, 1.0, 1.0, 0.79)), (std::vector<bool>{true, true, true, false}));
  EXPECT_EQ(verdicts(with_values(0.0, 1.0, 1.0, std::nullopt)), (std::vector<bool>{true, true, true, false}));
}

// The interval's far end keeps the limit, or the gate fails and says how many sequences would tell.
TEST(Gates, TheFarEndOfTheIntervalDecides) {
  GateLimits limits{0.1, 1.05, 0.9, std::nullopt};
  MethodReport m = with_values(0.05, 1.0, 0.95, std::nullopt);
  m.quality.kl.interval = Interval{0.02, 0.15};         // twice as far from the mean as the limit: four times 8
  m.quality.ppl_ratio_interval = Interval{0.9, 1.05};   // holds
  m.quality.same_top1_interval = Interval{0.80, 0.99};  // three times as far: nine times 8
  const std::vector<GateResult> gates = evaluate_gates(limits, m, 8);
  EXPECT_FALSE(gates[0].pass);
  EXPECT_EQ(gates[0].bound, 0.15);
  EXPECT_EQ(gates[0].reason, "the interval is too wide: score at least 32 sequences");
  EXPECT_TRUE(gates[1].pass) << gates[1].reason;
  EXPECT_FALSE(gates[2].pass);
  EXPECT_EQ(gates[2].reason, "the interval is too wide: score at least 72 sequences");
  m.quality.kl.interval = Interval{0.02, 0.0999};
  EXPECT_TRUE(evaluate_gates(limits, m, 8)[0].pass);
  m.quality.kl.mean = 0.2;  // beyond the limit itself: more text would not help
  EXPECT_FALSE(evaluate_gates(limits, m, 8)[0].pass);
  EXPECT_EQ(evaluate_gates(limits, m, 8)[0].reason, "");
}

TEST(Gates, TheTailHasAGateOfItsOwn) {
  GateLimits limits;
  limits.max_kl_p999 = 0.5;
  EXPECT_TRUE(limits.any());
  MethodReport m = with_values(0.01, 1.0, 1.0, std::nullopt);
  m.quality.tokens = kLeastTailTokens;
  m.quality.kl.p999 = 0.3;
  m.quality.kl.p999_interval = Interval{0.2, 0.45};
  ASSERT_EQ(evaluate_gates(limits, m, 8).size(), 1u);
  EXPECT_EQ(evaluate_gates(limits, m, 8)[0].name, "max_kl_p999");
  EXPECT_EQ(evaluate_gates(limits, m, 8)[0].bound, 0.45);
  EXPECT_TRUE(evaluate_gates(limits, m, 8)[0].pass);
  m.quality.kl.p999_interval = Interval{0.2, 0.55};
  EXPECT_FALSE(evaluate_gates(limits, m, 8)[0].pass);
  m.quality.kl.p999_interval = Interval{0.2, 0.45};
  m.quality.tokens = kLeastTailTokens - 1;
  EXPECT_FALSE(evaluate_gates(limits, m, 8)[0].pass);
  EXPECT_EQ(evaluate_gates(limits, m, 8)[0].reason, "too few tokens for the 99.9% quantile: score at least 5,000");
  m.quality.kl.p999 = 0.6;  // beyond the limit, whatever the number of tokens
  EXPECT_EQ(evaluate_gates(limits, m, 8)[0].reason, "");
}

// The mean over all texts is within the limit, and one text is not.
TEST(Gates, EveryTextIsGated) {
  const GateLimits limits{0.1, std::nullopt, std::nullopt, std::nullopt};
  VerifyReport r = sample_report({});
  MethodReport& m = r.methods[2];
  m.texts = {{"code.txt", 4, m.quality}, {"tales.txt", 4, m.quality}};
  m.texts[1].quality.kl.mean = 0.2;
  apply_gates(limits, r);
  ASSERT_EQ(r.gates.size(), 2u);
  EXPECT_EQ(r.gates[0].text, "code.txt");
  EXPECT_TRUE(r.gates[0].pass);
  EXPECT_EQ(r.gates[1].text, "tales.txt");
  EXPECT_FALSE(r.gates[1].pass);
  EXPECT_FALSE(r.pass);
  EXPECT_TRUE(verdict_sentences(r).back().ends_with(": FAIL on tales.txt")) << verdict_sentences(r).back();
  // The default gate fails what is beyond it, and passes nothing while a text is undecided.
  r.default_gate = true;
  m.texts[0].sequences = 2;
  apply_gates(limits, r);
  EXPECT_FALSE(r.pass);
  m.texts[1].quality = m.quality;
  apply_gates(limits, r);
  EXPECT_TRUE(r.pass);
  EXPECT_TRUE(r.gates.empty());
  EXPECT_EQ(r.undecided, "code.txt: too few sequences for a gate: score at least 4");
}

TEST(Gates, ABundleBesideTheCandidateDecidesNothing) {
  const GateLimits limits{0.1, std::nullopt, std::nullopt, std::nullopt};
  VerifyReport r = sample_report({});
  r.methods.push_back(r.methods[2]);
  r.methods[3].id = "other";
  r.methods[3].beside = true;
  r.methods[3].quality.kl.mean = 0.2;
  apply_gates(limits, r);
  ASSERT_EQ(r.gates.size(), 2u);
  EXPECT_TRUE(r.gates[0].decides);
  EXPECT_FALSE(r.gates[1].decides);
  EXPECT_FALSE(r.gates[1].pass);
  EXPECT_EQ(r.methods[3].passes_gates, false);
  EXPECT_TRUE(r.pass);
  ASSERT_EQ(verdict_sentences(r).size(), 2u);
  EXPECT_TRUE(verdict_sentences(r)[0].ends_with(": would fail"));
  EXPECT_TRUE(verdict_sentences(r)[1].ends_with(": PASS"));
  EXPECT_NE(report_html(r).find("banner pass"), std::string::npos);
  EXPECT_EQ(report_junit(r).find("<failure"), std::string::npos);
  r.methods[3].beside = false;
  apply_gates(limits, r);
  EXPECT_FALSE(r.pass);
}

TEST(Gates, TooFewSequencesFail) {
  const GateLimits limits{0.1, std::nullopt, std::nullopt, std::nullopt};
  MethodReport m = with_values(0.05, 1.0, 1.0, std::nullopt);
  EXPECT_FALSE(evaluate_gates(limits, m, 3)[0].pass);
  EXPECT_EQ(evaluate_gates(limits, m, 3)[0].reason, "too few sequences for a gate: score at least 4");
  EXPECT_TRUE(evaluate_gates(limits, m, 4)[0].pass);
  m.quality.kl.interval.reset();  // --bootstrap 0
  EXPECT_FALSE(evaluate_gates(limits, m, 4)[0].pass);
  m.quality.kl.mean = 1.3;
  EXPECT_FALSE(evaluate_gates(limits, m, 1)[0].pass);
  EXPECT_EQ(evaluate_gates(limits, m, 1)[0].reason, "") << "one sequence is enough to see that";
}

TEST(Gates, TheDefaultOneSaysWhereItCannotTell) {
  const GateLimits limits{kDefaultMaxKl, std::nullopt, std::nullopt, std::nullopt};
  VerifyReport r = sample_report({});
  r.default_gate = true;
  apply_gates(limits, r);
  EXPECT_EQ(r.gates.size(), 1u);
  EXPECT_TRUE(r.pass);
  r.scoring.sequences = 2;
  apply_gates(limits, r);
  EXPECT_TRUE(r.gates.empty());
  EXPECT_TRUE(r.pass);
  EXPECT_EQ(r.undecided, "too few sequences for a gate: score at least 4");
  r.default_gate = false;  // asked for
  apply_gates(limits, r);
  EXPECT_FALSE(r.pass);
}

TEST(Gates, NotANumberFails) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const GateResult& g : evaluate_gates({0.1, 1.05, 0.9, std::nullopt}, with_values(nan, nan, nan, 1.0), 8)) {
    EXPECT_FALSE(g.pass) << g.name;
  }
}

TEST(Gates, WorstLengthCounts) {
  MethodReport m = with_values(0, 1, 1, 0.95);
  m.tasks.push_back(m.tasks[0]);
  m.tasks[1].score = 0.5, m.tasks[1].interval = wilson_interval(5, 10);
  GateLimits limits;
  limits.min_niah = 0.9;
  EXPECT_EQ(evaluate_gates(limits, m, 8)[0].value, 0.5);
  EXPECT_FALSE(evaluate_gates(limits, m, 8)[0].pass);
}

// As for the other gates: the lower end of the interval, over the needles that BF16 finds.
TEST(Gates, FewNeedlesAreTooFew) {
  GateLimits limits;
  limits.min_niah = 0.9;
  const auto needles = [&](std::int64_t solved, std::int64_t n) {
    MethodReport m = with_values(0, 1, 1, static_cast<double>(solved) / static_cast<double>(n));
    m.tasks[0].interval = wilson_interval(solved, n);
    return evaluate_gates(limits, m, 8)[0];
  };
  EXPECT_FALSE(needles(10, 10).pass);
  EXPECT_NEAR(needles(10, 10).bound.value(), 0.7225, 1e-4);  // n / (n + z^2)
  EXPECT_EQ(needles(10, 10).reason, "too few needles for a gate: score at least 35 that BF16 finds (--task-prompts)");
  EXPECT_TRUE(needles(35, 35).pass);
  EXPECT_FALSE(needles(34, 34).pass);
  EXPECT_TRUE(needles(59, 60).pass);  // .911
  EXPECT_FALSE(needles(58, 60).pass);
  EXPECT_EQ(needles(58, 60).reason, "too few needles for a gate: score at least 78 that BF16 finds (--task-prompts)");
  EXPECT_FALSE(needles(8, 10).pass);
  EXPECT_EQ(needles(8, 10).reason, "") << "below the limit itself";
  EXPECT_EQ(needles(9, 10).reason, "no number of needles shows a score this near the limit: lower it");
  limits.min_niah = 1.0;
  EXPECT_FALSE(needles(1000, 1000).pass);
  EXPECT_NE(needles(1000, 1000).reason, "");
}

TEST(Gates, OnlyTheEvaluatedMethodDecides) {
  VerifyReport r = sample_report({0.1, std::nullopt, std::nullopt, std::nullopt});
  EXPECT_TRUE(r.pass);
  ASSERT_EQ(r.gates.size(), 1u);
  EXPECT_EQ(r.gates[0].method, "oscar");
  EXPECT_FALSE(r.methods[0].passes_gates.has_value());  // bf16
  EXPECT_FALSE(r.methods[1].passes_gates.has_value());  // naive2 is not evaluated
  EXPECT_EQ(r.methods[2].passes_gates, true);
  r = sample_report({0.001, std::nullopt, std::nullopt, std::nullopt});
  EXPECT_FALSE(r.pass);
}

TEST(Gates, FailedSelfCheckFailsTheRun) {
  VerifyReport r = sample_report({});
  EXPECT_TRUE(r.pass);
  r.checks.push_back({"negative_control", "", std::nullopt, std::nullopt, false});
  apply_gates({}, r);
  EXPECT_FALSE(r.pass);
}

TEST(Gates, RefusedBeforeWork) {
  EXPECT_NO_THROW(check_gate_limits({0.1, 1.1, 0.9, 0.8}, true, {"niah"}));
  EXPECT_NO_THROW(check_gate_limits({}, false, {}));
  EXPECT_THROW(check_gate_limits({0.1, std::nullopt, std::nullopt, std::nullopt}, false, {}), UsageError);
  EXPECT_THROW(check_gate_limits({std::nullopt, std::nullopt, std::nullopt, 0.8}, true, {}), UsageError);
  EXPECT_THROW(check_gate_limits({-0.1, std::nullopt, std::nullopt, std::nullopt}, true, {}), UsageError);
  EXPECT_THROW(check_gate_limits({std::nullopt, std::nullopt, 95.0, std::nullopt}, true, {}), UsageError);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(check_gate_limits({nan, std::nullopt, std::nullopt, std::nullopt}, true, {}), UsageError);
}

}  // namespace
}  // namespace oscar
