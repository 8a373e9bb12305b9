#include "collect/token_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "base/errors.h"

namespace oscar {
namespace {

using testing::HasSubstr;

// Prompts whose ids count up through the whole set, so that misplaced tokens show.
PromptSet prompts_of(const std::vector<int>& lengths) {
  PromptSet set;
  std::int32_t next = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    Prompt p{"p.jsonl:" + std::to_string(i + 1), "text", std::vector<std::int32_t>(lengths[i])};
    std::iota(p.ids.begin(), p.ids.end(), next);
    next += lengths[i];
    set.prompts.push_back(p);
  }
  return set;
}

TEST(TokenPlan, EachPromptIsASequence) {
  const PromptSet set = prompts_of({3, 5, 2});
  const TokenPlan plan = make_token_plan(set, 100, 16);
  EXPECT_EQ(plan.tokens, 10);
  EXPECT_EQ(plan.available, 10);
  EXPECT_EQ(plan.prompts_used, 3);
  EXPECT_EQ(plan.longest, 5);
  ASSERT_EQ(plan.pieces.size(), 3u);
  ASSERT_EQ(plan.steps.size(), 1u);  // short prompts share a step
  EXPECT_EQ(step_ids(set, plan, plan.steps[0]), (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_TRUE(plan.cut.empty() && plan.shortened.is_null() && plan.unused.empty());
  const auto notes = plan_notes(plan, 100);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_THAT(notes[0], HasSubstr("10 tokens of the 100"));
}

TEST(TokenPlan, CutsLongPromptsAndSaysSo) {
  const PromptSet set = prompts_of({10, 4});
  const TokenPlan plan = make_token_plan(set, 100, 4);
  ASSERT_EQ(plan.pieces.size(), 4u);  // 4 + 4 + 2, 4
  EXPECT_EQ(plan.pieces[2].parts[0].offset, 8);
  EXPECT_EQ(plan.pieces[2].length, 2);
  EXPECT_EQ(plan.pieces[3].position, 10);
  EXPECT_EQ(plan.cut[0]["pieces"], 3);
  EXPECT_EQ(plan.cut[0]["tokens"], 10);
  std::vector<std::int32_t> all;
  for (const Step& step : plan.steps) {
    EXPECT_LE(step.tokens, 4);
    EXPECT_EQ(step.position, static_cast<std::int64_t>(all.size()));
    const auto ids = step_ids(set, plan, step);
    EXPECT_EQ(static_cast<std::int64_t>(ids.size()), step.tokens);
    all.insert(all.end(), ids.begin(), ids.end());
  }
  std::vector<std::int32_t> expected(14);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(all, expected);
  EXPECT_THAT(plan_notes(plan, 14)[0], HasSubstr("p.jsonl:1: 10 tokens, cut into 3 pieces of at most 4"));
}

TEST(TokenPlan, BudgetShortensOnePromptAndListsTheRest) {
  PromptSet set = prompts_of({6, 6, 6, 6});
  set.skipped.push_back({"p.jsonl:9", "empty"});
  const TokenPlan plan = make_token_plan(set, 8, 100);
  EXPECT_EQ(plan.tokens, 8);
  EXPECT_EQ(plan.available, 24);
  EXPECT_EQ(plan.prompts_used, 2);
  EXPECT_EQ(plan.shortened["source"], "p.jsonl:2");
  EXPECT_EQ(plan.shortened["tokens"], 6);
  EXPECT_EQ(plan.shortened["used"], 2);
  ASSERT_EQ(plan.unused.size(), 1u);
  EXPECT_EQ(plan.unused[0]["first"], "p.jsonl:3");
  EXPECT_EQ(plan.unused[0]["last"], "p.jsonl:4");
  EXPECT_EQ(plan.unused[0]["rows"], 2);
  EXPECT_EQ(plan.skipped[0]["reason"], "empty");
  EXPECT_EQ(plan_notes(plan, 8).size(), 3u);
}

TEST(TokenPlan, ExactBudgetShortensNothing) {
  const TokenPlan plan = make_token_plan(prompts_of({6, 6, 6}), 12, 100);
  EXPECT_EQ(plan.tokens, 12);
  EXPECT_TRUE(plan.shortened.is_null());
  EXPECT_EQ(plan.unused[0]["rows"], 1);
}

// The prompts of 5, 4, 10 and 2 tokens in sequences of 8: 5 + 3, 1 + 7, 3 + 2.
TEST(TokenPlan, PackedPromptsFollowOneAnother) {
  const PromptSet set = prompts_of({5, 4, 10, 2});
  const TokenPlan plan = make_token_plan(set, 100, 8, true);
  EXPECT_EQ(plan.tokens, 21);
  EXPECT_EQ(plan.longest, 8);
  EXPECT_EQ(plan.prompts_used, 4);
  ASSERT_EQ(plan.pieces.size(), 3u);
  const auto parts = [&](std::size_t i) {
    std::vector<std::vector<std::int64_t>> list;
    for (const Segment& s : plan.pieces[i].parts)
      list.push_back({static_cast<std::int64_t>(s.prompt), s.offset, s.length});
    return list;
  };
  using Parts = std::vector<std::vector<std::int64_t>>;
  EXPECT_EQ(parts(0), (Parts{{0, 0, 5}, {1, 0, 3}}));
  EXPECT_EQ(parts(1), (Parts{{1, 3, 1}, {2, 0, 7}}));
  EXPECT_EQ(parts(2), (Parts{{2, 7, 3}, {3, 0, 2}}));
  EXPECT_EQ(plan.pieces[2].position, 16);
  EXPECT_EQ(plan.pieces[2].length, 5);
  EXPECT_EQ(plan.pieces[2].sequence, 2);
  // What a layer gets: all tokens in order, and every sequence at position 0, whatever prompt it begins in.
  std::vector<std::int32_t> all, expected(21);
  for (const Step& step : plan.steps) {
    const auto ids = step_ids(set, plan, step);
    all.insert(all.end(), ids.begin(), ids.end());
    const SequenceBatch batch = batch_of(plan, step);
    EXPECT_EQ(batch.starts, std::vector<std::int64_t>(batch.lengths.size(), 0));
    EXPECT_EQ(batch.tokens(), step.tokens);
  }
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(all, expected);
  // Prompts that are in two sequences are named.
  ASSERT_EQ(plan.cut.size(), 2u);
  EXPECT_EQ(plan.cut[0]["source"], "p.jsonl:2");
  EXPECT_EQ(plan.cut[1]["pieces"], 2);
  EXPECT_THAT(plan_notes(plan, 21)[0], HasSubstr("p.jsonl:2: 4 tokens, cut into 2 pieces of at most 8, the length of"));
}

TEST(TokenPlan, PackedPromptsEndWithTheBudget) {
  const PromptSet set = prompts_of({5, 4, 10, 2});
  const TokenPlan plan = make_token_plan(set, 12, 8, true);
  ASSERT_EQ(plan.pieces.size(), 2u);
  EXPECT_EQ(plan.pieces[1].length, 4);
  EXPECT_EQ(plan.shortened["source"], "p.jsonl:3");
  EXPECT_EQ(plan.shortened["used"], 3);
  EXPECT_EQ(plan.unused[0]["rows"], 1);
}

TEST(TokenPlan, IdsOfAPartOfAPackedSequence) {
  const PromptSet set = prompts_of({5, 4, 10, 2});
  const TokenPlan plan = make_token_plan(set, 100, 8, true);
  using Ids = std::vector<std::int32_t>;
  EXPECT_EQ(piece_ids(set, plan.pieces[0], 4, 3), (Ids{4, 5, 6}));  // over the border of two prompts
  EXPECT_EQ(piece_ids(set, plan.pieces[1], 0, 2), (Ids{8, 9}));
  EXPECT_EQ(piece_ids(set, plan.pieces[2], 2, 3), (Ids{18, 19, 20}));
  EXPECT_EQ(piece_ids(set, plan.pieces[2], 5, 0), Ids{});
}

TEST(TokenPlan, RefusesNothingToDo) {
  EXPECT_THROW(make_token_plan(prompts_of({5}), 0, 10), UsageError);
  EXPECT_THROW(make_token_plan(prompts_of({5}), -3, 10), UsageError);
  EXPECT_THROW(make_token_plan(prompts_of({5}), 10, 0), UsageError);
  EXPECT_THROW(make_token_plan(prompts_of({}), 10, 10), InputError);
}

}  // namespace
}  // namespace oscar
