// How long a sequence the sample models read well: their config.json says 8,192 tokens, and two were trained on 4,096.
#include "collect/reading_range.h"

#include <gtest/gtest.h>

#include "support/paths.h"
#include "text/prompts.h"

namespace oscar {
namespace {

// The first tokens of the model's calibration prompts, one after another.
std::vector<std::int32_t> calibration_ids(const Checkpoint& checkpoint, const fs::path& file, std::size_t tokens) {
  const fs::path& model = checkpoint.location().directory;
  const LazyTokenizer tokenizer(model / "tokenizer.json");
  const PromptSet set =
      load_prompts({file}, tokenizer, ChatTemplate::from_model(model), checkpoint.config().vocabulary);
  std::vector<std::int32_t> ids;
  for (const Prompt& prompt : set.prompts) ids.insert(ids.end(), prompt.ids.begin(), prompt.ids.end());
  ids.resize(std::min(ids.size(), tokens));
  return ids;
}

ReadingRange range_of(const std::string& model, const std::string& prompts, std::size_t tokens,
                      const DecoderOptions& decoding = {}) {
  const fs::path data = fs::path(OSCAR_SOURCE_DIR) / "sample_data";
  const Checkpoint checkpoint = Checkpoint::open(locate_model((data / model).string()));
  const std::vector<std::int32_t> ids = calibration_ids(checkpoint, data / prompts, tokens);
  EXPECT_EQ(ids.size(), tokens);
  return reading_range(checkpoint, decoding, ids);
}

TEST(ReadingRange, TriesHalvesDownToTheLeast) {
  EXPECT_EQ(tried_lengths(4095), std::vector<std::int64_t>{});
  EXPECT_EQ(tried_lengths(4096), std::vector<std::int64_t>{4096});
  EXPECT_EQ(tried_lengths(20000), (std::vector<std::int64_t>{20000, 10000, 5000}));
}

TEST(ReadingRange, NarrowProductsFindTheSameRange) {
  DecoderOptions mixed;
  mixed.products = at::kBFloat16;
  const ReadingRange range = range_of("tiny-llama", "text/tiny-llama/prompts.jsonl", 8192, mixed);
  EXPECT_EQ(range.tokens, 2048);
  EXPECT_EQ(range.beyond, 4096);
}

TEST(ReadingRange, AModelWithinItsRangeReadsToTheEnd) {
  const ReadingRange range = range_of("tiny-qwen3", "prompts.jsonl", 8192);
  EXPECT_EQ(range.tokens, 8192);
  EXPECT_EQ(range.beyond, 0);
}

TEST(ReadingRange, AModelBeyondItsRangeDoesNot) {
  const ReadingRange range = range_of("tiny-llama", "text/tiny-llama/prompts.jsonl", 8192);
  EXPECT_EQ(range.tokens, 2048);
  EXPECT_EQ(range.beyond, 4096);
  EXPECT_GT(range.beyond_loss - range.beyond_short, kMostLoss);
  EXPECT_EQ(range_of("tiny-qwen2", "text/tiny-qwen2/prompts.jsonl", 8192).tokens, 4096);
}

TEST(ReadingRange, ShortSequencesAreNotTried) {
  const ReadingRange range = range_of("tiny-llama", "text/tiny-llama/prompts.jsonl", 4000);
  EXPECT_EQ(range.tokens, 4000);
  EXPECT_EQ(range.beyond, 0);
}

}  // namespace
}  // namespace oscar
