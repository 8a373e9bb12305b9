// Which prompts a fit holds out, and the sequences that it measures.
#include "pipeline/fit/held_out.h"

#include <gtest/gtest.h>

#include <numeric>

namespace oscar {
namespace {

constexpr CacheWindows kWindows{64, 256, 1};

// Prompts of these lengths; every token has an id of its own.
PromptSet prompts_of(const std::vector<std::int64_t>& lengths) {
  PromptSet set;
  std::int32_t next = 0;
  for (const std::int64_t length : lengths) {
    Prompt prompt{"p:" + std::to_string(set.prompts.size() + 1), "input_ids", {}};
    for (std::int64_t t = 0; t < length; ++t) prompt.ids.push_back(next++);
    set.prompts.push_back(std::move(prompt));
  }
  set.sha256 = prompts_sha256(set.prompts);
  return set;
}

std::vector<std::int32_t> ids_of(const PromptSet& set) {
  std::vector<std::int32_t> ids;
  for (const Prompt& prompt : set.prompts) ids.insert(ids.end(), prompt.ids.begin(), prompt.ids.end());
  return ids;
}

// Of all prompts, every token is in one of the two sets, and in its order.
void expect_split(const PromptSet& whole, const PromptSet& rest, const PromptSet& held) {
  std::vector<std::int32_t> all = ids_of(rest), out = ids_of(held), expected = ids_of(whole);
  EXPECT_TRUE(std::is_sorted(all.begin(), all.end()) && std::is_sorted(out.begin(), out.end()));
  all.insert(all.end(), out.begin(), out.end());
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, expected);
  EXPECT_EQ(rest.sha256, prompts_sha256(rest.prompts));
}

TEST(HoldOut, TakesFirstWhatTheBudgetLeaves) {
  const PromptSet whole = prompts_of(std::vector<std::int64_t>(100, 1000));
  PromptSet rest = whole;
  const PromptSet held = hold_out(rest, 30000, {8, 2048}, kWindows);
  expect_split(whole, rest, held);
  EXPECT_EQ(token_count(held), 16384);  // whole prompts, and the end of one
  EXPECT_GE(held.prompts.front().ids.front(), 30000) << "what the calibration reaches stays";
  EXPECT_GT(held.prompts.back().ids.front(), 90000) << "from all parts of the rest";
  EXPECT_EQ(rest.skipped.size(), 16u);
  EXPECT_EQ(rest.skipped.front().reason, "held out for the measurement at the end");
}

TEST(HoldOut, TakesTheEndOfThePromptThatTheBudgetCuts) {
  const PromptSet whole = prompts_of({10000, 40000});
  PromptSet rest = whole;
  const PromptSet held = hold_out(rest, 30000, {8, 8192}, kWindows);
  expect_split(whole, rest, held);
  EXPECT_EQ(token_count(held), 20000) << "all that the calibration does not reach";
  EXPECT_EQ(held.prompts.front().ids.front(), 30000);

  PromptSet two = prompts_of({30000, 50000});  // the second is longer than what is wanted, and not reached
  const PromptSet end = hold_out(two, 30000, {8, 2048}, kWindows);
  EXPECT_EQ(token_count(end), 16384);
  EXPECT_EQ(end.prompts.front().ids.front(), 80000 - 16384);
  EXPECT_EQ(token_count(two), 80000 - 16384);
}

TEST(HoldOut, TakesATenthAndForEightSequencesUpToAFifth) {
  for (const auto& [prompts, expected] : {std::pair<int, std::int64_t>{200, 20000}, {60, 8000}, {20, 4000}}) {
    const PromptSet whole = prompts_of(std::vector<std::int64_t>(static_cast<std::size_t>(prompts), 1000));
    PromptSet rest = whole;
    const PromptSet held = hold_out(rest, 1 << 20, {8, 8192}, kWindows);
    expect_split(whole, rest, held);
    EXPECT_NEAR(static_cast<double>(token_count(held)), static_cast<double>(expected), 500.0) << prompts;
    EXPECT_LT(held.prompts.front().ids.front(), 200 * prompts) << "from all parts";
  }
}

TEST(HoldOut, CutsLongPrompts) {
  for (const std::vector<std::int64_t>& lengths :
       {std::vector<std::int64_t>{40000}, std::vector<std::int64_t>{20000, 10000, 10000}}) {
    const PromptSet whole = prompts_of(lengths);
    PromptSet rest = whole;
    const PromptSet held = hold_out(rest, 1 << 20, {8, 2048}, kWindows);
    expect_split(whole, rest, held);
    EXPECT_EQ(token_count(held), 8000);
    EXPECT_TRUE(rest.skipped.empty()) << "no prompt is lost to the calibration";
  }
}

TEST(HoldOut, LeavesShortSetsWhole) {
  for (const std::int64_t prompts : {1, 3, 12}) {
    const PromptSet whole = prompts_of(std::vector<std::int64_t>(static_cast<std::size_t>(prompts), 1000));
    PromptSet rest = whole;
    EXPECT_TRUE(hold_out(rest, 1 << 20, {8, 8192}, kWindows).prompts.empty());
    EXPECT_EQ(ids_of(rest), ids_of(whole));
    EXPECT_TRUE(rest.skipped.empty());
  }
}

TEST(ShapeWithin, AllSequencesOrFourShortOnes) {
  const HeldOutShape wanted{8, 8192};
  const auto shape = [&](std::int64_t tokens) { return shape_within(wanted, tokens, kWindows); };
  for (const auto& [tokens, sequences, context] : {std::array<std::int64_t, 3>{100000, 8, 8192},
                                                   {50000, 8, 6250},
                                                   {8192, 8, 1024},
                                                   {8000, 4, 2000},
                                                   {2560, 4, 640}}) {
    EXPECT_EQ(shape(tokens)->sequences, sequences) << tokens;
    EXPECT_EQ(shape(tokens)->context, context) << tokens;
  }
  EXPECT_EQ(shape_within({8, 700}, 1 << 20, kWindows)->sequences, 8);  // short contexts are served
  EXPECT_EQ(shape_within({4, 1024}, 1 << 20, kWindows)->sequences, 4);
  EXPECT_FALSE(shape(2559));  // not twice the windows
  EXPECT_FALSE(shape(0));
}

// The contexts that are served on a GPU; on the CPU what takes about two minutes.
TEST(WantedShape, FollowsDeviceAndModel) {
  ModelConfig smollm;
  smollm.layers = 30, smollm.hidden = 576, smollm.intermediate = 1536, smollm.query_heads = 9, smollm.kv_heads = 3;
  smollm.head_dim = 64, smollm.vocabulary = 49152;
  EXPECT_EQ(wanted_shape(smollm, c10::kCUDA, 8192).sequences, 8);
  EXPECT_EQ(wanted_shape(smollm, c10::kCUDA, 8192).context, 8192);
  EXPECT_EQ(wanted_shape(smollm, c10::kCUDA, 131072).sequences, 8);
  EXPECT_EQ(wanted_shape(smollm, c10::kCUDA, 131072).context, 32768);
  EXPECT_EQ(wanted_shape(smollm, c10::kCPU, 8192).sequences, 8);
  EXPECT_EQ(wanted_shape(smollm, c10::kCPU, 8192).context, 2048);
  EXPECT_EQ(wanted_shape(smollm, c10::kCPU, 512).context, 512);
  ModelConfig large = smollm;
  large.hidden *= 8, large.intermediate *= 8;
  EXPECT_EQ(wanted_shape(large, c10::kCPU, 8192).sequences, 4);
  EXPECT_EQ(wanted_shape(large, c10::kCPU, 8192).context, 1024);
  ModelConfig tiny = smollm;
  tiny.layers = 2, tiny.vocabulary = 512;
  EXPECT_EQ(wanted_shape(tiny, c10::kCPU, 8192).sequences, 8);
  EXPECT_EQ(wanted_shape(tiny, c10::kCPU, 8192).context, 8192);
}

}  // namespace
}  // namespace oscar
