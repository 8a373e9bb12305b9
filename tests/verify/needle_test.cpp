#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/errors.h"
#include "support/paths.h"
#include "verify/tasks/task.h"

namespace oscar {
namespace {

using testing::HasSubstr;

const Tokenizer& tokenizer() {
  static const Tokenizer t = Tokenizer::from_file(OSCAR_SOURCE_DIR "/sample_data/tiny-qwen3/tokenizer.json");
  return t;
}

std::string text_of(const TaskPrompt& prompt, bool answer) {
  const auto cut = prompt.ids.begin() + prompt.answer_start;
  return tokenizer().decode(answer ? std::vector<std::int32_t>(cut, prompt.ids.end())
                                   : std::vector<std::int32_t>(prompt.ids.begin(), cut));
}

TEST(Needle, FillsTheLengthAndHoldsItsAnswer) {
  const TaskSet set = make_task("niah", 1024, 11, 3, tokenizer());
  ASSERT_EQ(set.prompts.size(), 11u);
  for (std::size_t i = 0; i < set.prompts.size(); ++i) {
    const TaskPrompt& p = set.prompts[i];
    EXPECT_LE(p.ids.size(), 1024u);
    EXPECT_GE(p.ids.size(), 1010u);  // less than one more sentence would fit
    EXPECT_DOUBLE_EQ(p.depth, static_cast<double>(i) / 10);
    const std::string answer = text_of(p, true), prompt = text_of(p, false);
    ASSERT_EQ(answer.size(), 8u) << answer;  // a space and seven digits
    EXPECT_EQ(answer[0], ' ');
    EXPECT_EQ(answer.substr(1).find_first_not_of("0123456789"), std::string::npos) << answer;
    EXPECT_EQ(prompt.substr(prompt.size() - 4), " is:");
    // The value stands once in the text, at its depth (by characters, as the sentences are about equally long).
    const std::size_t at = prompt.find(answer + ".");
    ASSERT_NE(at, std::string::npos);
    EXPECT_EQ(prompt.find(answer, at + 1), std::string::npos);
    EXPECT_NEAR(static_cast<double>(at) / static_cast<double>(prompt.size()), 0.06 + 0.9 * p.depth, 0.06);
  }
}

TEST(Needle, DependsOnTheSeedAlone) {
  const TaskSet a = make_task("niah", 600, 4, 3, tokenizer()), b = make_task("niah", 600, 4, 3, tokenizer());
  const TaskSet c = make_task("niah", 600, 4, 4, tokenizer());
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(a.prompts[i].ids, b.prompts[i].ids);
    EXPECT_NE(a.prompts[i].ids, c.prompts[i].ids);
  }
}

TEST(Needle, RefusesALengthTooShort) {
  EXPECT_THROW(make_task("niah", 80, 2, 0, tokenizer()), UsageError);
  EXPECT_NO_THROW(make_task("niah", 160, 2, 0, tokenizer()));
}

TEST(Tasks, UnknownNamesAreRefusedWithTheList) {
  try {
    make_task("niahh", 1024, 2, 0, tokenizer());
    FAIL();
  } catch (const UsageError& e) {
    EXPECT_THAT(e.what(), HasSubstr("niahh"));
    EXPECT_THAT(e.what(), HasSubstr("niah"));
  }
}

TEST(Tasks, OnlyPromptsThatTheBaselineSolvesCount) {
  TaskSet set{"niah", 1024, {}};
  for (int i = 0; i < 5; ++i) set.prompts.push_back({{1, 2}, 1, i / 4.0});
  const TaskScore s = score_task(set, {true, true, false, true, false}, {true, false, true, true, true});
  EXPECT_EQ(s.prompts, 5);
  EXPECT_EQ(s.n, 4);
  EXPECT_EQ(s.solved, 2);
  EXPECT_EQ(s.score, 0.5);
  EXPECT_DOUBLE_EQ(s.standard_error, std::sqrt(0.25 / 3));
  ASSERT_EQ(s.depths.size(), 5u);
  EXPECT_EQ(s.depths[0].prompts, 1);
  EXPECT_EQ(s.depths[1].prompts, 0);  // the one BF16 does not solve
  EXPECT_EQ(s.depths[4].prompts, 1);  // depth 1.0 belongs to the last row
  EXPECT_EQ(s.depths[4].solved, 0);
}

TEST(Tasks, NothingSolvedGivesNoScore) {
  TaskSet set{"niah", 1024, {{{1, 2}, 1, 0.0}}};
  EXPECT_FALSE(score_task(set, {false}, {false}).score.has_value());
}

}  // namespace
}  // namespace oscar
