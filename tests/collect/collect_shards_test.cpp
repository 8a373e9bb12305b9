// Shards of a run on the sample model: what they add up to, and stopping one.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/errors.h"
#include "base/random.h"
#include "collect/collect.h"
#include "collect/shard.h"
#include "statistics/layer_fields.h"
#include "statistics/shard_merge.h"
#include "support/message_of.h"
#include "support/paths.h"
#include "support/temp_directory.h"

namespace oscar {
namespace {

using testing::HasSubstr;

constexpr const char* kShardedModel = OSCAR_SOURCE_DIR "/sample_data/tiny-qwen3-outliers";

class CollectShards : public testing::Test {
 protected:
  CollectShards() : checkpoint_(Checkpoint::open(locate_model(kShardedModel))) {
    prompts_.sha256 = "set";
    const std::vector<int> lengths = {40, 70, 9, 33, 64};
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      Prompt p{"p.jsonl:" + std::to_string(i + 1), "input_ids", {}};
      for (int t = 0; t < lengths[i]; ++t) p.ids.push_back(static_cast<std::int32_t>(random_bits(3, i, t) % 8000));
      prompts_.prompts.push_back(p);
    }
    options_.tokens = 200;
    options_.seq_len = 72;
    options_.rows = 24;
    options_.far = {4, 20, true};
    options_.tool_version = "test";
  }

  void run(const std::string& output, const Shard& shard) {
    options_.output = dir_ / output;
    options_.shard = shard;
    const TokenPlan plan = make_token_plan(prompts_, options_.tokens, options_.seq_len, options_.context > 0);
    collect(checkpoint_, prompts_, shard_plan(plan, shard), options_);
  }
  void expect_shards_add_up();

  TempDirectory dir_;
  Checkpoint checkpoint_;
  PromptSet prompts_;
  CollectOptions options_;
};

double relative(const at::Tensor& a, const at::Tensor& b) { return ((a - b).norm() / b.norm()).item<double>(); }

void CollectShards::expect_shards_add_up() {
  run("whole", {1, 1});
  std::vector<Statistics> shards;
  std::vector<std::string> names;
  for (std::int64_t i = 1; i <= 5; ++i) {  // four steps, or three of packed prompts
    names.push_back(std::to_string(i));
    run(names.back(), {i, 5});
    shards.push_back(load_part(dir_ / names.back()));
  }
  EXPECT_EQ(shards.back().tokens, 0);
  const Statistics whole = load_statistics(dir_ / "whole"), merged = merge_shards(shards, names);
  EXPECT_EQ(merged.tokens, whole.tokens);
  EXPECT_LT(relative(merged.embedding_energy, whole.embedding_energy), 1e-12);
  for (std::size_t i = 0; i < whole.layers.size(); ++i) {
    const LayerMoments &a = merged.layers[i], &b = whole.layers[i];
    for (const MomentField& f : kMomentFields) {
      // The weights of the published proxy come from each shard's own queries.
      const double most = f.tensor == &LayerMoments::energy_gram ? 0.5 : 1e-12;
      EXPECT_LT(relative(a.*f.tensor, b.*f.tensor), most) << f.name;
    }
    for (const MetricField& f : kFarPairFields) EXPECT_LT(relative(a.*f.tensor, b.*f.tensor), 1e-12) << f.name;
    for (const EnergyField& f : kEnergyFields) {
      ASSERT_EQ((a.*f.tensor).defined(), (b.*f.tensor).defined()) << f.name;
      if ((a.*f.tensor).defined()) {
        EXPECT_LT(relative(a.*f.tensor, b.*f.tensor), 1e-12) << f.name;
      }
    }
    EXPECT_EQ(a.row_priority, b.row_priority);
    EXPECT_EQ(a.row_position, b.row_position);
    for (const RowField& f : kRowFields) EXPECT_TRUE((a.*f.tensor).equal(b.*f.tensor)) << f.name;
  }
  Json part = merged.metadata["parts"][0];
  part.erase("shards");
  EXPECT_EQ(part, whole.metadata["parts"][0]);
  EXPECT_EQ(merged.metadata["rows"], whole.metadata["rows"]);
}

TEST_F(CollectShards, AddUpToTheWholeRun) { expect_shards_add_up(); }

TEST_F(CollectShards, OfPackedPromptsAddUpToTheWholeRun) {
  options_.context = options_.seq_len;
  expect_shards_add_up();
}

TEST_F(CollectShards, AStoppedShardResumesBitForBitAndAsItself) {
  struct Stopped {};
  run("whole", {2, 2});
  options_.work_dir = dir_ / "work";
  options_.checkpoint_seconds = 0;
  int calls = 0;
  options_.after_step = [&] {
    if (++calls == 5) throw Stopped();
  };
  EXPECT_THROW(run("part", {2, 2}), Stopped);
  options_.after_step = nullptr;
  options_.resume = true;
  for (const Shard& other : {Shard{1, 2}, Shard{2, 3}, Shard{}}) {
    EXPECT_THAT(message_of<UsageError>([&] { run("part", other); }),
                HasSubstr("has --shard 2/2, this one " + shard_text(other)));
  }
  run("part", {2, 2});
  EXPECT_TRUE(read_file(dir_ / "part") == read_file(dir_ / "whole"));
}

}  // namespace
}  // namespace oscar
