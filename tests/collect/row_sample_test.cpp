#include "collect/row_sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace oscar {
namespace {

// Of sequences of these lengths, numbered from 0.
std::vector<SampledToken> sample_tokens(std::uint64_t seed, std::string_view prompt_set_sha256,
                                        const std::vector<std::int64_t>& lengths, std::int64_t k) {
  std::vector<SampledSequence> sequences;
  for (const std::int64_t length : lengths) sequences.push_back({static_cast<std::int64_t>(sequences.size()), length});
  return sample_sequences(seed, prompt_set_sha256, sequences, k);
}

TEST(RowSample, KeepsTheSmallestPriorities) {
  const std::vector<std::int64_t> lengths = {10, 1, 25, 7};
  std::vector<std::uint64_t> all;
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    for (std::int64_t p = 0; p < lengths[s]; ++p) all.push_back(token_priority(5, "abc", s, p));
  }
  std::sort(all.begin(), all.end());
  const auto sample = sample_tokens(5, "abc", lengths, 12);
  ASSERT_EQ(sample.size(), 12u);
  for (std::size_t i = 0; i < sample.size(); ++i) {
    EXPECT_EQ(sample[i].priority, all[i]);
    EXPECT_EQ(sample[i].priority, token_priority(5, "abc", sample[i].sequence, sample[i].position));
    std::int64_t before = 0;
    for (std::int64_t s = 0; s < sample[i].sequence; ++s) before += lengths[s];
    EXPECT_EQ(sample[i].token, before + sample[i].position);
  }
}

TEST(RowSample, TakesEverythingWhenThereIsLess) {
  EXPECT_EQ(sample_tokens(0, "x", {3, 4}, 100).size(), 7u);
  EXPECT_TRUE(sample_tokens(0, "x", {}, 100).empty());
  EXPECT_TRUE(sample_tokens(0, "x", {5}, 0).empty());
}

TEST(RowSample, DependsOnSeedAndPromptSet) {
  const auto tokens = [](std::uint64_t seed, const char* sha) {
    std::set<std::int64_t> out;
    for (const auto& t : sample_tokens(seed, sha, {1000}, 50)) out.insert(t.token);
    return out;
  };
  EXPECT_EQ(tokens(1, "a"), tokens(1, "a"));
  EXPECT_NE(tokens(1, "a"), tokens(2, "a"));
  EXPECT_NE(tokens(1, "a"), tokens(1, "b"));
}

TEST(RowSample, IsUniform) {
  // 2000 of 20000 tokens; each of ten equal ranges expects 200, standard deviation 13.4.
  int counts[10] = {};
  for (const auto& t : sample_tokens(7, "uniform", std::vector<std::int64_t>(20, 1000), 2000)) ++counts[t.token / 2000];
  for (const int c : counts) EXPECT_NEAR(c, 200, 60);
}

}  // namespace
}  // namespace oscar
