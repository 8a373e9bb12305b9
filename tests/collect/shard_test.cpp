// How a run is dealt to shards, and what merge says of files that are not one run's.
#include "collect/shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/errors.h"
#include "statistics/random_statistics.h"
#include "statistics/shard_merge.h"
#include "support/message_of.h"
#include "support/temp_directory.h"

namespace oscar {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

PromptSet prompts_of(const std::vector<int>& lengths) {
  PromptSet set;
  for (const int length : lengths) {
    set.prompts.push_back({"p.jsonl:1", "text", std::vector<std::int32_t>(static_cast<std::size_t>(length))});
  }
  return set;
}

// With 10 tokens to a step: {10}, {10}, {4, 6}, {10}, {3}.
TokenPlan five_steps() { return make_token_plan(prompts_of({10, 10, 4, 6, 10, 3}), 1000, 10); }

TEST(Shard, CostIsLinearWithAQuadraticPart) {
  EXPECT_EQ(sequence_cost(1), 16385u);
  EXPECT_EQ(sequence_cost(2048), 2048u * 18432u);
  EXPECT_EQ(sequence_cost(16384), 2u * 16384u * 16384u);  // half of it is attention
  EXPECT_EQ(sequence_cost(32768), 32768u * 49152u);
}

TEST(Shard, StepsGoToTheShardWithTheLeastCost) {
  // Costs: 163940, 163940, 4 * 16388 + 6 * 16390 = 163892, 163940, 49161. Dealt in the order 0, 1, 3, 2, 4.
  EXPECT_THAT(deal_steps(five_steps(), 2), ElementsAre(ElementsAre(0, 3), ElementsAre(1, 2, 4)));
  EXPECT_THAT(deal_steps(five_steps(), 3), ElementsAre(ElementsAre(0, 2), ElementsAre(1, 4), ElementsAre(3)));
  EXPECT_THAT(deal_steps(five_steps(), 7), ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(3), ElementsAre(2),
                                                       ElementsAre(4), IsEmpty(), IsEmpty()));
}

TEST(Shard, OneLongSequenceWeighsMoreThanItsTokens) {
  // 32768 tokens in one sequence cost as much as 32768 * 49152 / (2048 * 18432) = 42.7 of 2048 tokens, not 16.
  std::vector<int> lengths(44, 2048);
  lengths.insert(lengths.begin(), 32768);
  const TokenPlan plan = make_token_plan(prompts_of(lengths), 1 << 20, 32768);
  // Sixteen short sequences are one step: 64 % of the cost of the long one.
  EXPECT_THAT(deal_steps(plan, 2), ElementsAre(ElementsAre(0), ElementsAre(1, 2, 3)));
}

TEST(Shard, ASharesPlanKeepsNumbersAndCountsPositionsAnew) {
  const TokenPlan whole = five_steps();
  const TokenPlan plan = shard_plan(whole, {2, 2});
  EXPECT_EQ(plan.tokens, 23);
  EXPECT_EQ(plan.longest, 10);
  EXPECT_EQ(plan.whole_tokens, 43);
  EXPECT_EQ(plan.whole_sequences, 6);
  ASSERT_EQ(plan.pieces.size(), 4u);
  std::vector<std::int64_t> sequences, positions, prompts;
  for (const Piece& piece : plan.pieces) {
    sequences.push_back(piece.sequence);
    positions.push_back(piece.position);
    prompts.push_back(static_cast<std::int64_t>(piece.parts.at(0).prompt));
  }
  EXPECT_THAT(sequences, ElementsAre(1, 2, 3, 5));
  EXPECT_THAT(prompts, ElementsAre(1, 2, 3, 5));
  EXPECT_THAT(positions, ElementsAre(0, 10, 14, 20));
  ASSERT_EQ(plan.steps.size(), 3u);
  EXPECT_EQ(plan.steps[1].first, 1u);
  EXPECT_EQ(plan.steps[1].count, 2u);
  EXPECT_EQ(plan.steps[2].position, 20);
  EXPECT_EQ(plan.prompts_used, whole.prompts_used);
}

TEST(Shard, EverySequenceLandsInOneShare) {
  std::vector<int> lengths;
  for (int i = 0; i < 200; ++i) lengths.push_back(1 + i * 37 % 90);
  const TokenPlan whole = make_token_plan(prompts_of(lengths), 100000, 64);
  for (const std::int64_t count : {1, 2, 3, 8, 500}) {
    std::set<std::int64_t> seen;
    std::int64_t tokens = 0;
    for (std::int64_t i = 1; i <= count; ++i) {
      const TokenPlan plan = shard_plan(whole, {i, count});
      for (const Piece& piece : plan.pieces) EXPECT_TRUE(seen.insert(piece.sequence).second);
      tokens += plan.tokens;
    }
    EXPECT_EQ(seen.size(), whole.pieces.size());
    EXPECT_EQ(tokens, whole.tokens);
  }
}

TEST(Shard, TextIsReadStrictly) {
  EXPECT_EQ(parse_shard("2/8").index, 2);
  EXPECT_EQ(parse_shard("2/8").count, 8);
  EXPECT_EQ(shard_text(parse_shard("8/8")), "8/8");
  EXPECT_FALSE(parse_shard("1/1").is_part());
  for (const char* text : {"", "/", "1", "1/", "/2", "0/2", "3/2", "-1/2", "1/-2", "+1/2", "1/2/3", " 1/2", "1.0/2",
                           "1/100001", "1/99999999999999999999"}) {
    EXPECT_THROW(parse_shard(text), UsageError) << text;
  }
}

// Shards of one run, of other tokens each, as far as merge can tell.
class ShardMerge : public testing::Test {
 protected:
  static Statistics shard(std::int64_t index, std::int64_t of) {
    Statistics s = random_statistics({.seed = static_cast<int>(index)});
    Json& part = s.metadata["parts"][0];
    part["prompts"] = {{"sha256", sha256_hex("all")}};
    part["longest_sequence"] = 10 * index;
    part["tool_version"] = "1";
    part["options"] = {{"seed", 0}, {"seq_len", 64}, {"dtype", "float32"}, {"far_pairs", "none"}};
    part["shard"] = {{"index", index}, {"of", of}, {"tokens", 50 * of}, {"sequences", of}};
    return s;
  }
  std::string refusal() const {
    return message_of([&] { merge_shards(shards_, {"a", "b", "c"}); });
  }
  Json& part(std::size_t i) { return shards_[i].metadata["parts"][0]; }
  std::vector<Statistics> shards_ = {shard(1, 3), shard(2, 3), shard(3, 3)};
};

TEST_F(ShardMerge, SumsAndRecordsTheWhole) {
  const Statistics m = merge_shards({shards_[2], shards_[0], shards_[1]}, {"c", "a", "b"});
  EXPECT_EQ(m.tokens, 150);
  const at::Tensor sum = shards_[0].layers[1].q_gram + shards_[1].layers[1].q_gram + shards_[2].layers[1].q_gram;
  EXPECT_TRUE(m.layers[1].q_gram.equal(sum));
  ASSERT_EQ(m.metadata["parts"].size(), 1u);
  const Json& whole = m.metadata["parts"][0];
  EXPECT_FALSE(whole.contains("shard"));
  EXPECT_EQ(whole["tokens"], 150);
  EXPECT_EQ(whole["sequences"], 3);
  EXPECT_EQ(whole["longest_sequence"], 30);
  EXPECT_EQ(whole["shards"][1], (Json{{"index", 2}, {"tokens", 50}, {"sequences", 1}}));
  EXPECT_FALSE(is_shard(m));
  // Which is an ordinary file: a second merge sees that the prompts are the same.
  EXPECT_THAT(message_of([&] { merge_statistics({m, m}); }), HasSubstr("same prompt set"));
}

TEST_F(ShardMerge, AnEmptyShardAddsNothingAndIsAskedFor) {
  const TempDirectory dir;
  Statistics& s = shards_[2];
  s.tokens = 0;
  s.embedding_energy = at::Tensor();
  s.layers.assign(s.layers.size(), {});
  part(2).update({{"tokens", 0}, {"sequences", 0}, {"longest_sequence", 0}});
  for (std::size_t i = 0; i < 3; ++i) part(i)["shard"].update({{"tokens", 100}, {"sequences", 2}});
  save_statistics(s, dir / "empty");
  EXPECT_THAT(message_of([&] { load_statistics(dir / "empty"); }),
              HasSubstr("is shard 3 of 3 of a run and got no sequence"));
  s = load_part(dir / "empty");
  EXPECT_EQ(s.layers.size(), 2u);
  EXPECT_EQ(merge_shards(shards_, {"a", "b", "c"}).tokens, 100);
  shards_.pop_back();
  EXPECT_THAT(message_of([&] {
                merge_shards(shards_, {"a", "b"});
              }),
              HasSubstr("a: is shard 1 of 3, and shard 3 is not"));
}

TEST_F(ShardMerge, TokensMayNotBeMissingElsewhere) {
  Statistics s = random_statistics({});
  s.tokens = 0;
  const TempDirectory dir;
  EXPECT_THROW(save_statistics(s, dir / "a"), InputError);
}

TEST_F(ShardMerge, IncompleteOrDoubleIsRefused) {
  EXPECT_THAT(message_of([&] { merge_shards({shards_[0]}, {"a"}); }),
              HasSubstr("a: is shard 1 of 3, and shards 2, 3 are not"));
  shards_[2] = shards_[1];
  EXPECT_THAT(refusal(), HasSubstr("c: is shard 2 of 3, which another file is, too"));
}

TEST_F(ShardMerge, OtherRunsAreRefusedByName) {
  const std::string b = "b: shard 2 of 3 is of another run than a: ";
  const auto refused = [&](const std::function<void()>& change, const std::string& expected) {
    const Statistics good = shards_[1];
    change();
    EXPECT_THAT(refusal(), HasSubstr(expected));
    shards_[1] = good;
  };
  refused([&] { part(1)["prompts"]["sha256"] = sha256_hex("x"); }, b + "the prompts differ");
  refused([&] { part(1)["shard"]["of"] = 4; }, "b: shard 2 of 4 is of another run than a: a is shard 1 of 3");
  refused([&] { part(1)["options"]["seed"] = 7; }, b + "--seed differs, 7 and 0");
  refused([&] { part(1)["options"]["seq_len"] = 32; }, b + "--seq-len differs, 32 and 64");
  refused([&] { part(1)["options"].erase("dtype"); }, b + "--dtype differs, nothing and \"float32\"");
  refused([&] { part(1)["prompts"]["date"] = "2026-01-01"; }, b + "the prompts are recorded differently");
  refused([&] { part(1)["tool_version"] = "2"; }, b + "the versions of oscar-collect differ, \"2\" and \"1\"");
  refused([&] { part(1)["shard"]["tokens"] = 151; }, b + "the whole run has other tokens");
  refused([&] { shards_[1].model_fingerprint = "v2:sha256:0"; }, b + "the models differ");
  refused([&] { shards_[1] = random_statistics({.seed = 9}); }, "b: is no shard of a run, and a is shard 1 of 3");
  for (std::size_t i = 0; i < 3; ++i) part(i)["shard"]["tokens"] = 149;
  EXPECT_THAT(refusal(), HasSubstr("a: says that the whole run has 149 tokens, and all shards have 150"));
}

TEST_F(ShardMerge, ImpossibleRecordsAreRefused) {
  const TempDirectory dir;
  for (const char* key : {"index", "of", "tokens", "sequences"}) {
    for (const Json& value : {Json(0), Json(-1), Json("2"), Json(), Json(1e30), Json(std::int64_t{1} << 51)}) {
      Statistics s = shards_[0];
      s.metadata["parts"][0]["shard"][key] = value;
      save_statistics(s, dir / "a");
      EXPECT_THROW(load_part(dir / "a"), InputError) << key << " " << value.dump();
    }
  }
  Statistics s = shards_[0];
  s.metadata["parts"].push_back(s.metadata["parts"][0]);
  save_statistics(s, dir / "a");
  EXPECT_THAT(message_of([&] { load_part(dir / "a"); }), HasSubstr("one of several parts is a shard"));
}

}  // namespace
}  // namespace oscar
