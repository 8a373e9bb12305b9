#include "verify/baseline_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/errors.h"
#include "report/sample_report.h"
#include "support/message_of.h"
#include "support/temp_directory.h"

namespace oscar {
namespace {

const BootstrapOptions kBootstrap{500, 0.95, 1};

// Adds the same KL to every sequence of a row.
void raise_kl(QualityMetrics& quality, double increase) {
  quality.kl.mean += increase;
  for (double& mean : quality.kl.by_sequence) mean += increase;
}

std::function<QualityMetrics(std::size_t)> same(const VerifyReport& report) {
  return [&report](std::size_t row) { return report.methods[row].quality; };
}

class Baseline : public testing::Test {
 protected:
  void SetUp() override { write_file_atomic(file_, report_json(sample_report({}))); }
  TempDirectory folder_;  // tests run side by side
  fs::path file_ = folder_ / "earlier_report.json";
};

TEST_F(Baseline, ListsTheChangeOfEveryMethod) {
  VerifyReport now = sample_report({});
  raise_kl(now.methods[2].quality, 0.5);
  BaselineReport::load(file_).compare(now, std::nullopt, kBootstrap, same(now));
  ASSERT_EQ(now.changes.size(), 2u);  // not BF16
  EXPECT_EQ(now.changes[1].method, "oscar");
  EXPECT_NEAR(now.changes[1].kl_now - now.changes[1].kl_before, 0.5, 1e-7);
  EXPECT_TRUE(now.pass);
  EXPECT_EQ(now.baseline, "earlier_report.json");
}

TEST_F(Baseline, AGateOnTheIncrease) {
  for (const double increase : {0.01, 0.5}) {
    VerifyReport now = sample_report({});
    raise_kl(now.methods[2].quality, increase);
    BaselineReport::load(file_).compare(now, 0.1, kBootstrap, same(now));
    EXPECT_EQ(now.pass, increase < 0.1);
    ASSERT_FALSE(now.gates.empty());
    EXPECT_EQ(now.gates.back().name, "max_kl_increase");
  }
  VerifyReport other = sample_report({});
  other.methods[2].comparison = "bytes";  // not in the earlier report
  BaselineReport::load(file_).compare(other, 0.1, kBootstrap, same(other));
  EXPECT_FALSE(other.pass);
  EXPECT_FALSE(other.gates.back().value.has_value());
}

// One row that passes does not speak for the other.
TEST_F(Baseline, ACandidateThatTheEarlierReportLacksFails) {
  VerifyReport now = sample_report({});
  MethodReport decoded = now.methods[2];
  decoded.path = "decode";
  now.methods.push_back(decoded);
  BaselineReport::load(file_).compare(now, 0.1, kBootstrap, same(now));
  EXPECT_FALSE(now.pass);
  ASSERT_EQ(now.gates.back().path, "decode");
  EXPECT_FALSE(now.gates.back().value.has_value());
  EXPECT_THAT(now.gates.back().reason, testing::HasSubstr("has no such row"));
}

// Sequences are paired: their own spread cancels, and an increase of one sequence in four may be chance.
TEST_F(Baseline, TheIntervalOfTheIncreaseDecides) {
  const auto gate_of = [&](const std::vector<double>& increases) {
    VerifyReport now = sample_report({});
    std::vector<double>& means = now.methods[2].quality.kl.by_sequence;
    EXPECT_EQ(means.size(), increases.size());
    double sum = 0;
    for (std::size_t i = 0; i < means.size(); ++i) means[i] += increases[i], sum += increases[i] / 4;
    now.methods[2].quality.kl.mean += sum;
    BaselineReport::load(file_).compare(now, 0.1, kBootstrap, same(now));
    EXPECT_EQ(now.pass, now.gates.back().pass);
    return now.gates.back();
  };
  const GateResult even = gate_of({0.05, 0.05, 0.05, 0.05});
  EXPECT_TRUE(even.pass) << even.reason;
  EXPECT_NEAR(even.bound.value(), 0.05, 1e-9);  // the sequences themselves differ by a factor of two
  const GateResult uneven = gate_of({0.0, 0.0, 0.0, 0.2});
  EXPECT_NEAR(uneven.value.value(), 0.05, 1e-9);
  EXPECT_NEAR(uneven.bound.value(), 0.15, 1e-9);  // the upper 2.5 % of four draws: three of the one, or more
  EXPECT_FALSE(uneven.pass);
  EXPECT_THAT(uneven.reason, testing::HasSubstr("the interval is too wide: score at least 16 sequences"));
}

TEST_F(Baseline, AReportWithoutSequencesCannotTell) {
  Json old = Json::parse(report_json(sample_report({})));
  for (Json& row : old["methods"]) row["kl"].erase("by_sequence");
  write_file_atomic(file_, old.dump());
  VerifyReport now = sample_report({});
  BaselineReport::load(file_).compare(now, 0.1, kBootstrap, same(now));
  EXPECT_FALSE(now.pass);
  EXPECT_THAT(now.gates.back().reason, testing::HasSubstr("write it again with this version"));
}

TEST_F(Baseline, OtherRunsAreRefused) {
  const BaselineReport earlier = BaselineReport::load(file_);
  const VerifyReport r = sample_report({});
  EXPECT_NO_THROW(earlier.require_same(r.model, r.text, r.scoring, "float32"));
  ModelFacts model = r.model;
  model.fingerprint = "v2:sha256:" + std::string(64, 'b');
  EXPECT_THROW(earlier.require_same(model, r.text, r.scoring, "float32"), InputError);
  TextFacts text = r.text;
  text.sha256 = std::string(64, 'b');
  EXPECT_THROW(earlier.require_same(r.model, text, r.scoring, "float32"), InputError);
  ScoringFacts scoring = r.scoring;
  scoring.context = 512;
  EXPECT_THROW(earlier.require_same(r.model, r.text, scoring, "float32"), InputError);
  EXPECT_THROW(earlier.require_same(r.model, r.text, r.scoring, "bfloat16"), InputError);
}

// Tokens that this run does not score cannot be compared; tokens that only this run scores are left out.
TEST_F(Baseline, TheTokensOfTheEarlierReportDecide) {
  const BaselineReport earlier = BaselineReport::load(file_);
  const VerifyReport r = sample_report({});
  const auto refusal = [&](const ScoringFacts& scoring) {
    return message_of<InputError>([&] { earlier.require_same(r.model, r.text, scoring, "float32"); });
  };
  ScoringFacts scoring = r.scoring;
  scoring.first_position += 1;  // a method with longer windows came in
  EXPECT_THAT(refusal(scoring), testing::AllOf(testing::HasSubstr("from 320 on"), testing::HasSubstr("from 321 on")));
  scoring = r.scoring;
  scoring.sequences = 1;
  EXPECT_THAT(refusal(scoring), testing::AllOf(testing::HasSubstr("4 sequences"), testing::HasSubstr("has 1")));
  scoring.sequences = 5, scoring.first_position = 300;
  EXPECT_NO_THROW(earlier.require_same(r.model, r.text, scoring, "float32"));
}

TEST_F(Baseline, ComparesOnTheSameTokensOnly) {
  VerifyReport now = sample_report({});
  QualityMetrics same = now.methods[2].quality;
  now.methods[2].quality.kl.mean = 100;  // of other tokens
  raise_kl(same, 0.25 - same.kl.mean);
  BaselineReport::load(file_).compare(now, 0.5, kBootstrap, [&](std::size_t) { return same; });
  EXPECT_DOUBLE_EQ(now.changes[1].kl_now, 0.25);
  EXPECT_TRUE(now.pass);
  EXPECT_EQ(now.baseline_tokens, now.scoring.tokens);
}

TEST_F(Baseline, OtherFilesAreRefused) {
  for (const char* text : {"", "[]", "{}", "{\"format_version\": 1, \"methods\": [{}]}", "{\"format_version\": 99}"}) {
    write_file_atomic(file_, text);
    EXPECT_THROW(BaselineReport::load(file_), InputError) << text;
  }
  fs::remove(file_);
  EXPECT_THROW(BaselineReport::load(file_), InputError);
}

// Each was read as it stood, and products of such numbers overflowed.
TEST_F(Baseline, FiguresThatNoRunHasAreNamed) {
  const Json good = Json::parse(report_json(sample_report({})));
  const auto refusal = [&](const char* pointer, const Json& value) {
    Json report = good;
    report[Json::json_pointer(pointer)] = value;
    write_file_atomic(file_, report.dump());
    return message_of<InputError>([&] { BaselineReport::load(file_); });
  };
  using testing::HasSubstr;
  EXPECT_THAT(refusal("/scoring/first_position", -1), HasSubstr("\"first_position\" is -1, expected a whole number"));
  EXPECT_THAT(refusal("/scoring/sequences", 9223372036854775807), HasSubstr("\"sequences\" is 9223372036854775807"));
  EXPECT_THAT(refusal("/scoring/tokens", 0.5), HasSubstr("\"tokens\" is 0.5"));
  EXPECT_THAT(refusal("/context", "\x1b[2J"), testing::Not(HasSubstr("\x1b")));
  EXPECT_THAT(refusal("/methods/2/kl/mean", -0.5), HasSubstr("mean KL -0.5"));
  EXPECT_THAT(refusal("/methods/2/kl/by_sequence/1", -1), HasSubstr("expected numbers not below zero"));
  EXPECT_THAT(refusal("/methods/2/ppl_ratio", 0), HasSubstr("perplexity ratio 0"));
}

TEST(Markdown, HasARowForEachMethodAndTheVerdict) {
  const std::string pass = report_markdown(sample_report({0.1, 1.1, 0.1, 0.5}));
  EXPECT_THAT(pass, testing::HasSubstr("| oscar (evaluated) | common | prefill |"));
  EXPECT_THAT(pass, testing::HasSubstr("**pass**"));
  EXPECT_THAT(report_markdown(sample_report({1e-9, {}, {}, {}})), testing::HasSubstr("**FAIL**"));
}

TEST(Junit, CountsFailuresAndSkips) {
  const std::string xml = report_junit(sample_report({1e-9, {}, {}, {}}));
  EXPECT_THAT(xml, testing::HasSubstr("tests=\"3\" failures=\"1\" skipped=\"1\""));
  EXPECT_THAT(xml, testing::HasSubstr("<failure message=\"max_kl of oscar (prefill)"));
}

}  // namespace
}  // namespace oscar
