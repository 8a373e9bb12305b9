#include "generate/write_text.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/errors.h"
#include "base/run_directory.h"
#include "support/message_of.h"
#include "support/paths.h"
#include "support/temp_directory.h"
#include "text/prompts.h"

namespace oscar {
namespace {

using testing::HasSubstr;

constexpr const char* kWriter = OSCAR_SOURCE_DIR "/sample_data/tiny-qwen3";

struct Writing {
  TempDirectory folder;
  Checkpoint checkpoint = Checkpoint::open(locate_model(kWriter, ""));
  Tokenizer tokenizer = Tokenizer::from_file(fs::path(kWriter) / "tokenizer.json");
  ChatTemplate chat = ChatTemplate::from_model(kWriter);
  Decoder decoder{checkpoint, {at::kFloat, at::kCPU, false}};
  TextRequest request;

  Writing(std::int64_t rows, std::int64_t row_tokens, std::uint64_t seed = 7) {
    request.shape = {.rows = rows, .row_tokens = row_tokens};
    request.seed = seed;
    request.vocabulary = tokenizer.vocabulary_size();
    request.work_dir = folder.path() / "work";
    request.identity = {{"tool_version", "1"},
                        {"model", "m"},
                        {"openers", book().sha256()},
                        {"threads", at::get_num_threads()},
                        {"options", {{"seed", seed}}}};
    request.resume_command = "again";
  }
  ScriptBook book() const { return {checkpoint.config(), tokenizer, chat, request.seed}; }
  TextRows write() { return write_text(decoder, book(), request); }
};

TEST(TextShape, RowsAreEqualAndHoldWhatWasAskedFor) {
  const std::vector<std::pair<std::int64_t, std::int64_t>> cases{{30000, 4096}, {30000, 100}, {1, 1}, {5, 3}};
  for (const auto& [tokens, longest] : cases) {
    const TextShape shape = text_shape(tokens, longest);
    EXPECT_GE(shape.tokens(), tokens);
    EXPECT_LT(shape.tokens(), tokens + shape.rows);
    EXPECT_LE(shape.row_tokens, std::min(longest, kRowTokens));
  }
  EXPECT_EQ(text_shape(30000, 4096).rows, 30);
}

TEST(TextShape, BatchesOfAGpuAreAsLargeAsItsMemoryAllows) {
  const ModelConfig model = Checkpoint::open(locate_model(kWriter, "")).config();
  const TextShape shape = text_shape(120000, 4096);
  const auto batch_of = [&](std::int64_t rows) {
    TextShape wanted = shape;
    wanted.batch_rows = rows;
    return text_bytes(model, wanted);
  };
  const std::uint64_t weights = 1000000;
  const auto rows_with = [&](std::uint64_t bytes) { return on_device(shape, model, weights, bytes).batch_rows; };
  EXPECT_EQ(rows_with(0), kBatchRows);  // the run will say what is missing
  EXPECT_EQ(rows_with((weights + batch_of(64)) * 10 / 9 - 100), kBatchRows);
  EXPECT_EQ(rows_with((weights + batch_of(64)) * 10 / 9 + 100), 2 * kBatchRows);
  EXPECT_EQ(rows_with((weights + batch_of(118)) * 10 / 9 + 100), 4 * kBatchRows);
}

// Text drawn from a distribution has its entropy: the mean of -ln p(token) - H(p) is 0. Wrong positions, a cache that
// is out of step or another temperature would show.
TEST(WriteText, TokensFollowTheModelsOwnDistribution) {
  Writing writing(5, 400);
  const TextRows rows = writing.write();
  double sum = 0.0, squares = 0.0;
  std::int64_t count = 0;
  FullAttention exact;
  for (std::size_t r = 0; r < rows.size(); r += 2) {  // those that begin at the start token: nothing else is forced
    ASSERT_EQ(std::ssize(rows[r]), 400);
    const at::Tensor hidden = writing.decoder.forward(rows[r], {{0}, {400}, {0}}, exact);
    const at::Tensor log_p = at::log_softmax(writing.decoder.logits(hidden).to(at::kDouble), -1);
    const at::Tensor entropy = -(log_p.exp() * log_p).sum(-1);
    for (std::int64_t t = 0; t + 1 < 400; ++t) {
      const double surprise =
          -log_p[t][rows[r][static_cast<std::size_t>(t + 1)]].item<double>() - entropy[t].item<double>();
      sum += surprise, squares += surprise * surprise, ++count;
    }
  }
  const double mean = sum / static_cast<double>(count);
  const double error =
      std::sqrt(squares / static_cast<double>(count) - mean * mean) / std::sqrt(static_cast<double>(count));
  EXPECT_LT(error, 0.1);
  EXPECT_LT(std::abs(mean), 4.0 * error);
}

// Long enough that passages are repeated in the last block.
TEST(WriteText, ARunThatStoppedWritesTheSameRows) {
  constexpr std::int64_t kLength = 2 * kBlockTokens + 200;
  Writing whole(2, kLength);
  const TextRows expected = whole.write();
  const ScriptBook book = whole.book();
  for (std::int64_t row = 0; row < 2; ++row) {
    const auto& tokens = expected[static_cast<std::size_t>(row)];
    const std::int64_t from = book.repeated_from(row, 640).value();
    EXPECT_TRUE(std::equal(tokens.begin() + from, tokens.begin() + from + kRepeatedTokens, tokens.begin() + 640));
    EXPECT_FALSE(std::equal(tokens.begin() + from, tokens.begin() + from + 8, tokens.begin() + 632));
  }
  Writing stopped(2, kLength);
  int blocks = 0;
  stopped.request.after_block = [&] {
    if (++blocks < 3) throw InterruptedError("stop");
  };
  EXPECT_THROW(stopped.write(), InterruptedError);
  EXPECT_THAT(message_of<UsageError>([&] { stopped.write(); }), HasSubstr("--resume"));  // not without being asked to
  stopped.request.resume = true;
  EXPECT_THROW(stopped.write(), InterruptedError);
  EXPECT_EQ(stopped.write(), expected);
  EXPECT_EQ(blocks, 3);
  forget_text(stopped.request);
  EXPECT_FALSE(fs::exists(stopped.request.work_dir));
  Writing other(2, kLength, 8);
  EXPECT_NE(other.write(), expected);
}

TEST(WriteText, ADamagedStateIsRefused) {
  Writing writing(2, kBlockTokens + 4);
  writing.request.after_block = [] { throw InterruptedError("stop"); };
  EXPECT_THROW(writing.write(), InterruptedError);
  writing.request.after_block = nullptr;
  writing.request.resume = true;
  const fs::path file = writing.request.work_dir / "rows.json";
  const Json good = read_json(file);
  const auto refusal = [&](const std::function<void(Json&)>& change) {
    Json bad = good;
    change(bad);
    write_file_atomic(file, with_checksum(bad).dump());
    return message_of([&] { writing.write(); });
  };
  EXPECT_THAT(refusal([](Json& j) { j["rows"].erase(0); }), HasSubstr("holds 1 rows, expected 2"));
  EXPECT_THAT(refusal([](Json& j) { j["rows"][1][3] = 8192; }), HasSubstr("does not know"));
  EXPECT_THAT(refusal([](Json& j) { j["rows"][1][3] = -1; }), HasSubstr("does not know"));
  EXPECT_THAT(refusal([](Json& j) { j["rows"][1][3] = "a"; }), HasSubstr("does not know"));
  EXPECT_THAT(refusal([](Json& j) { j["rows"][1].erase(0); }), HasSubstr("row 1 has 255 tokens"));
  EXPECT_THAT(refusal([](Json& j) { j["rows"][0] = 5; }), HasSubstr("no list"));
  EXPECT_THAT(refusal([](Json& j) { j["run"] = "x"; }), HasSubstr("another run"));
  Json bad = good;  // with the checksum of the good rows
  bad["rows"][1][3] = good["rows"][1][3].get<int>() == 7 ? 8 : 7;
  write_file_atomic(file, bad.dump());
  EXPECT_THAT(message_of([&] { writing.write(); }), HasSubstr("checksum differs"));
  write_file_atomic(file, good.dump());
  EXPECT_EQ(std::ssize(writing.write()[1]), kBlockTokens + 4);
}

TEST(WriteText, TheFileIsOneOfPrompts) {
  Writing writing(3, 20);
  const TextRows rows = writing.write();
  const fs::path file = writing.folder.path() / "own.jsonl";
  save_text(file, rows, writing.tokenizer, {{"seed", 7}});
  const PromptSet prompts =
      load_prompts({file}, writing.tokenizer, writing.chat, writing.checkpoint.config().vocabulary);
  ASSERT_EQ(prompts.prompts.size(), rows.size());
  for (std::size_t r = 0; r < rows.size(); ++r) EXPECT_EQ(prompts.prompts[r].ids, rows[r]);
  EXPECT_EQ(written_record(file), Json({{"seed", 7}}));
  write_file_atomic(file, "{\"text\": \"of others\"}\n");
  EXPECT_EQ(written_record(file), std::nullopt);
  write_file_atomic(file, "\xff\xfe nothing");
  EXPECT_EQ(written_record(file), std::nullopt);
}

}  // namespace
}  // namespace oscar
