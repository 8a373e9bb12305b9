#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/errors.h"
#include "support/paths.h"
#include "tasks/task.h"

namespace oscar {
namespace {

using testing::HasSubstr;

const Tokenizer& tokenizer() {
  static const Tokenizer t = Tokenizer::from_file(OSCAR_SOURCE_DIR "/sample_data/tiny-qwen3/tokenizer.json");
  return t;
}

std::string text_of(const TaskPrompt& prompt, bool answer) {
  const auto cut = prompt.ids.begin() + prompt.answers.front().begin;
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

TEST(Tasks, OnlyWhatTheBaselineFindsCounts) {
  TaskSet set{"niah", 1024, {}};
  for (int i = 0; i < 5; ++i) set.prompts.push_back({{1, 2, 3}, {{1, 2}, {2, 3}}, i / 4.0});
  const FoundAnswers found{{true, false}, {true, false}, {false, false}, {true, false}, {false, false}};
  const FoundAnswers base{{true, false}, {false, false}, {true, false}, {true, false}, {true, false}};
  const TaskScore s = score_task(set, found, base);
  EXPECT_EQ(s.prompts, 5);
  EXPECT_EQ(s.references, 10);
  EXPECT_EQ(s.n, 4);
  EXPECT_EQ(s.solved, 2);
  EXPECT_EQ(s.score, 0.5);
  EXPECT_NEAR(s.interval.low, 0.1500, 1e-4);  // Wilson, 2 of 4
  EXPECT_NEAR(s.interval.high, 0.8500, 1e-4);
  ASSERT_EQ(s.depths.size(), 5u);
  EXPECT_EQ(s.depths[0].prompts, 1);
  EXPECT_EQ(s.depths[1].prompts, 0);  // the one BF16 does not find
  EXPECT_EQ(s.depths[4].prompts, 1);  // depth 1.0 belongs to the last row
  EXPECT_EQ(s.depths[4].solved, 0);
}

TEST(Tasks, NothingFoundGivesNoScore) {
  TaskSet set{"niah", 1024, {{{1, 2}, {{1, 2}}, 0.0}}};
  EXPECT_FALSE(score_task(set, {{false}}, {{false}}).score.has_value());
}

// What the prompts of every task must be.
class EveryTask : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Tasks, EveryTask, testing::ValuesIn(task_names()), [](const auto& info) {
  std::string name = info.param;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
});

TEST_P(EveryTask, FillsTheLengthAndNamesItsAnswers) {
  const TaskSet set = make_task(GetParam(), 1500, 5, 3, tokenizer());
  for (const TaskPrompt& p : set.prompts) {
    EXPECT_LE(p.ids.size(), 1500u);
    EXPECT_GE(p.ids.size(), 1350u);
    ASSERT_FALSE(p.answers.empty());
    EXPECT_EQ(p.answers.back().end, std::ssize(p.ids));
    std::int64_t last = 0;
    const std::string prompt = tokenizer().decode({p.ids.begin(), p.ids.begin() + p.answers.front().begin});
    for (const AnswerSpan& a : p.answers) {
      EXPECT_GE(a.begin, last);
      EXPECT_LT(a.begin, a.end);
      last = a.end;
      // Every reference stands in the text that the model has read.
      std::string text = tokenizer().decode({p.ids.begin() + a.begin, p.ids.begin() + a.end});
      while (!text.empty() && (text[0] == ' ' || text[0] == ',')) text.erase(0, 1);
      EXPECT_NE(prompt.find(text), std::string::npos) << text;
    }
  }
}

TEST_P(EveryTask, DependsOnTheSeedAlone) {
  const TaskSet a = make_task(GetParam(), 900, 2, 3, tokenizer()), b = make_task(GetParam(), 900, 2, 3, tokenizer());
  EXPECT_EQ(a.prompts[1].ids, b.prompts[1].ids);
  EXPECT_NE(a.prompts[1].ids, make_task(GetParam(), 900, 2, 4, tokenizer()).prompts[1].ids);
}

TEST(Tasks, AskForAsManyStringsAsRuler) {
  const auto answers = [](const char* task) {
    return make_task(task, 1500, 1, 1, tokenizer()).prompts[0].answers.size();
  };
  EXPECT_EQ(answers("niah-multivalue"), 4u);
  EXPECT_EQ(answers("niah-multiquery"), 4u);
  EXPECT_EQ(answers("vt"), 5u);
}

TEST(Tasks, AllStandsForEveryOne) {
  EXPECT_EQ(expand_tasks({"all"}), task_names());
  EXPECT_EQ(expand_tasks({"vt"}), std::vector<std::string>{"vt"});
  EXPECT_THROW(expand_tasks({"vtt"}), UsageError);
}

}  // namespace
}  // namespace oscar
