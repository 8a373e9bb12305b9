#include "text/sequences.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/errors.h"
#include "support/paths.h"

namespace oscar {
namespace {

constexpr CacheWindows kWindows{64, 256, 1};

std::vector<std::int32_t> count_to(int n) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(n));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

TEST(Sequences, DoNotOverlap) {
  const SequenceSet set = cut_sequences(count_to(1300), {400, 0, 0, 8192, {}}, kWindows);
  ASSERT_EQ(set.sequences.size(), 3u);
  EXPECT_EQ(set.context, 400);
  EXPECT_EQ(set.unused_tokens, 100);
  for (int s = 0; s < 3; ++s) {
    EXPECT_EQ(set.sequences[static_cast<std::size_t>(s)].front(), 400 * s);
    EXPECT_EQ(set.sequences[static_cast<std::size_t>(s)].back(), 400 * s + 399);
  }
}

TEST(Sequences, EachStartsWithThePrefix) {
  std::vector<std::int32_t> text = count_to(900);
  text.insert(text.begin(), 7000);  // the tokenizer wrote it once, in front
  const SequenceSet set = cut_sequences(text, {400, 0, 0, 8192, {7000}}, kWindows);
  ASSERT_EQ(set.sequences.size(), 2u);
  EXPECT_EQ(set.sequences[0].size(), 400u);
  EXPECT_EQ(set.sequences[0][0], 7000);
  EXPECT_EQ(set.sequences[0][1], 0);
  EXPECT_EQ(set.sequences[1][0], 7000);
  EXPECT_EQ(set.sequences[1][1], 399);
  EXPECT_EQ(set.text_tokens, 900);  // the prefix is not part of the text
  EXPECT_EQ(set.unused_tokens, 900 - 2 * 399);
}

TEST(Sequences, Limits) {
  EXPECT_EQ(cut_sequences(count_to(4000), {400, 900, 0, 0, {}}, kWindows).sequences.size(), 2u);
  EXPECT_EQ(cut_sequences(count_to(4000), {400, 0, 3, 0, {}}, kWindows).sequences.size(), 3u);
  EXPECT_EQ(cut_sequences(count_to(4000), {400, 0, 3, 0, {}}, kWindows).unused_tokens, 2800);
}

TEST(Sequences, ShortTextIsOneShortSequence) {
  const SequenceSet set = cut_sequences(count_to(350), {2048, 0, 0, 8192, {}}, kWindows);
  ASSERT_EQ(set.sequences.size(), 1u);
  EXPECT_EQ(set.context, 350);
  EXPECT_EQ(set.unused_tokens, 0);
}

TEST(Sequences, Refusals) {
  EXPECT_THROW(cut_sequences(count_to(300), {2048, 0, 0, 8192, {}}, kWindows), InputError);  // all in BF16
  EXPECT_THROW(cut_sequences(count_to(335), {2048, 0, 0, 8192, {}}, kWindows), InputError);  // hardly out of it
  EXPECT_THROW(cut_sequences({}, {2048, 0, 0, 8192, {}}, kWindows), InputError);
  EXPECT_THROW(cut_sequences(count_to(5000), {320, 0, 0, 8192, {}}, kWindows), UsageError);
  EXPECT_THROW(cut_sequences(count_to(5000), {0, 0, 0, 8192, {}}, kWindows), UsageError);
  EXPECT_THROW(cut_sequences(count_to(5000), {-5, 0, 0, 8192, {}}, kWindows), UsageError);
  EXPECT_THROW(cut_sequences(count_to(9000), {8193, 0, 0, 8192, {}}, kWindows), UsageError);
  EXPECT_THROW(cut_sequences(count_to(5000), {400, -1, 0, 8192, {}}, kWindows), UsageError);
  EXPECT_NO_THROW(cut_sequences(count_to(9000), {8192, 0, 0, 8192, {}}, kWindows));
}

TEST(Sequences, TheSampleModelHasNoLeadingToken) {
  const Tokenizer tokenizer = Tokenizer::from_file(OSCAR_SOURCE_DIR "/sample_data/tiny-qwen3/tokenizer.json");
  EXPECT_TRUE(leading_special_tokens(tokenizer).empty());
}

}  // namespace
}  // namespace oscar
