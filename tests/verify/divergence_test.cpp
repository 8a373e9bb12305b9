#include "verify/divergence.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/errors.h"

namespace oscar {
namespace {

at::Tensor logits_of(const std::vector<std::vector<float>>& rows) {
  at::Tensor t = at::empty({static_cast<std::int64_t>(rows.size()), static_cast<std::int64_t>(rows[0].size())});
  float* data = t.mutable_data_ptr<float>();
  for (const auto& row : rows) data = std::copy(row.begin(), row.end(), data);
  return t;
}

SequenceScores score(const at::Tensor& base, const at::Tensor& method, std::vector<std::int32_t> targets) {
  SequenceScores s;
  BaselineRows(base, targets, "here").score(method, "m", s);
  return s;
}

TEST(Divergence, EqualLogitsGiveExactlyZero) {
  at::manual_seed(3);
  const at::Tensor x = at::randn({37, 1000}) * 8;
  const SequenceScores s = score(x, x.clone(), std::vector<std::int32_t>(37, 5));
  ASSERT_EQ(s.kl.size(), 37u);
  for (std::size_t i = 0; i < s.kl.size(); ++i) {
    EXPECT_EQ(s.kl[i], 0.0);
    EXPECT_EQ(s.nll[i], s.baseline_nll[i]);
    EXPECT_EQ(s.same_top[i], 1);
  }
}

// A sum over one row of a large vocabulary is shared among threads, and over several rows it is not.
TEST(Divergence, EqualLogitsOfALargeVocabularyGiveExactlyZero) {
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  at::manual_seed(4);
  for (const std::int64_t rows : {1, 2, 64}) {
    const at::Tensor x = at::randn({rows, 200000}) * 8;
    const SequenceScores s = score(x, x.clone(), std::vector<std::int32_t>(static_cast<std::size_t>(rows), 5));
    for (const double kl : s.kl) EXPECT_EQ(kl, 0.0) << rows << " rows";
    EXPECT_EQ(s.nll, s.baseline_nll);
  }
  at::set_num_threads(threads);
}

TEST(Divergence, TwoPointDistributions) {
  // Base (3/4, 1/4), method (1/4, 3/4): KL = 3/4 ln 3 + 1/4 ln 1/3 = 1/2 ln 3.
  const float l = std::log(3.0f);
  const SequenceScores s = score(logits_of({{l, 0}, {l, 0}}), logits_of({{0, l}, {l, 0}}), {0, 1});
  EXPECT_NEAR(s.kl[0], 0.5 * std::log(3.0), 1e-7);
  EXPECT_NEAR(s.baseline_nll[0], -std::log(0.75), 1e-7);
  EXPECT_NEAR(s.nll[0], -std::log(0.25), 1e-7);
  EXPECT_EQ(s.same_top[0], 0);
  EXPECT_EQ(s.kl[1], 0);
  EXPECT_NEAR(s.nll[1], -std::log(0.25), 1e-7);
  EXPECT_EQ(s.same_top[1], 1);
}

TEST(Divergence, ShiftedLogitsAreTheSameDistribution) {
  const SequenceScores s = score(logits_of({{1, 2, 3}}), logits_of({{101, 102, 103}}), {2});
  EXPECT_NEAR(s.kl[0], 0, 1e-12);
}

TEST(Divergence, UniformLogitsGiveLogOfTheVocabulary) {
  const at::Tensor x = at::zeros({2, 8192});
  const SequenceScores s = score(x, x, {0, 8191});
  EXPECT_NEAR(s.nll[0], std::log(8192.0), 1e-12);
  EXPECT_NEAR(s.nll[1], std::log(8192.0), 1e-12);
}

TEST(Divergence, LargeLogitsDoNotOverflow) {
  const SequenceScores s = score(logits_of({{3e4f, 0}}), logits_of({{0, 3e4f}}), {1});
  EXPECT_NEAR(s.kl[0], 3e4, 1e-6);
  EXPECT_NEAR(s.baseline_nll[0], 3e4, 1e-6);
  EXPECT_EQ(s.nll[0], 0);
}

TEST(Divergence, RefusesLogitsThatAreNotFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(score(logits_of({{nan, 0}}), logits_of({{0, 0}}), {0}), NumericalError);
  try {
    score(logits_of({{0, 0}}), logits_of({{0, nan}}), {0});
    FAIL();
  } catch (const NumericalError& e) {
    EXPECT_NE(std::string(e.what()).find("method m"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("here"), std::string::npos);
  }
}

TEST(Divergence, BlocksStaySmallButReadTheHeadFewTimes) {
  EXPECT_EQ(rows_per_block(8192, at::kCPU), 128);
  EXPECT_LE(rows_per_block(9000, at::kCPU) * 9000 * 8, std::int64_t{8} << 20);
  EXPECT_EQ(rows_per_block(152064, at::kCPU), 64);
  EXPECT_EQ(rows_per_block(std::int64_t{1} << 40, at::kCPU), 64);
}

}  // namespace
}  // namespace oscar
