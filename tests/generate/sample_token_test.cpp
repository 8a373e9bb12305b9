#include "generate/sample_token.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/errors.h"
#include "base/random.h"

namespace oscar {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(SampleToken, TakesTheTokenOfTheCumulativeProbability) {
  const std::vector<float> logits{0.0f, std::log(2.0f), -kInfinity, 0.0f};  // 1/4, 1/2, 0, 1/4
  const auto draw = [&](double unit) { return sample_token(logits.data(), 4, unit); };
  EXPECT_EQ(draw(0.0), 0);
  EXPECT_EQ(draw(0.2499), 0);
  EXPECT_EQ(draw(0.2501), 1);
  EXPECT_EQ(draw(0.7499), 1);
  EXPECT_EQ(draw(0.7501), 3);
  EXPECT_EQ(draw(std::nextafter(1.0, 0.0)), 3);
}

TEST(SampleToken, LeavesOutWhatTheTokenizerDoesNotKnow) {
  const std::vector<float> logits{-1.0f, -2.0f, 500.0f};
  for (const double unit : {0.0, 0.5, 0.999}) EXPECT_LT(sample_token(logits.data(), 2, unit), 2);
}

TEST(SampleToken, DrawsAsOftenAsSoftmaxSays) {
  const std::vector<float> logits{1.0f, -1.0f, 0.5f, 2.0f, 30.0f - 30.0f};
  const at::Tensor p = at::softmax(at::tensor(logits).to(at::kDouble), 0);
  constexpr int kDraws = 40000;
  std::vector<double> counts(logits.size());
  for (int i = 0; i < kDraws; ++i) {
    counts[static_cast<std::size_t>(
        sample_token(logits.data(), std::ssize(logits), random_unit(3, 4, static_cast<std::uint64_t>(i))))] += 1.0;
  }
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double want = p[static_cast<std::int64_t>(i)].item<double>();
    EXPECT_NEAR(counts[i] / kDraws, want, 4.0 * std::sqrt(want * (1.0 - want) / kDraws)) << i;
  }
}

TEST(SampleToken, RowsGiveWhatEachGivesAlone) {
  const at::Tensor logits = at::randn({7, 100}, at::kFloat).contiguous();
  std::vector<double> units;
  for (std::uint64_t r = 0; r < 7; ++r) units.push_back(random_unit(1, 2, r));
  const std::vector<std::int32_t> drawn = sample_tokens(logits, 90, units);
  for (std::int64_t r = 0; r < 7; ++r) {
    EXPECT_EQ(drawn[static_cast<std::size_t>(r)],
              sample_token(logits[r].const_data_ptr<float>(), 90, units[static_cast<std::size_t>(r)]));
  }
}

// None of these units is within rounding of a boundary.
void expect_same_in_runs(at::Device device) {
  at::manual_seed(5);
  const at::Tensor logits = at::randn({96, 5000}, at::kFloat) * 3;
  logits.narrow(1, 1500, 1200).fill_(-kInfinity);  // a run without weight, and parts of two
  std::vector<double> units{0.0, std::nextafter(1.0, 0.0)};
  for (std::uint64_t r = 2; r < 96; ++r) units.push_back(random_unit(1, 2, r));
  for (const std::int64_t vocabulary : {4096, 4990}) {
    EXPECT_EQ(sample_in_runs(logits.to(device), vocabulary, units), sample_tokens(logits, vocabulary, units));
  }
  logits[3][7] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(sample_in_runs(logits.to(device), 4990, units), NumericalError);
}

TEST(SampleToken, RunsDrawTheSameTokens) { expect_same_in_runs(at::kCPU); }

TEST(SampleToken, RunsOnAGpuDrawTheSameTokens) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
  expect_same_in_runs(at::kCUDA);
}

TEST(SampleToken, RefusesLogitsThatAreNotFinite) {
  for (const float bad : {kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    for (std::size_t at = 0; at < 3; ++at) {
      std::vector<float> logits{0.0f, 1.0f, 2.0f};
      logits[at] = bad;
      EXPECT_THROW(sample_token(logits.data(), 3, 0.5), NumericalError);
    }
  }
  const std::vector<float> nothing(3, -kInfinity);
  EXPECT_THROW(sample_token(nothing.data(), 3, 0.5), NumericalError);
}

}  // namespace
}  // namespace oscar
