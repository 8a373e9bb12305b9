// The whole forward path: streaming, packing and causality leave the result alone.
#include "model/decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/errors.h"
#include "model/tiny_checkpoint.h"
#include "support/message_of.h"
#include "support/paths.h"
#include "support/temp_directory.h"

namespace oscar {
namespace {

SequenceBatch batch_of(std::vector<std::int64_t> lengths) {
  SequenceBatch batch;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    batch.ids.push_back(static_cast<std::int64_t>(i));
    batch.starts.push_back(0);
  }
  batch.lengths = std::move(lengths);
  return batch;
}

std::vector<std::int32_t> token_ids(std::int64_t count, std::int32_t vocabulary) {
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < count; ++i) ids.push_back(static_cast<std::int32_t>((i * i + 3 * i) % vocabulary));
  return ids;
}

Checkpoint sample(const std::string& name) {
  return Checkpoint::open(locate_model(OSCAR_SOURCE_DIR "/sample_data/" + name));
}

TEST(Decoder, StreamedLayersGiveTheSameBits) {
  const Checkpoint checkpoint = sample("tiny-qwen3");
  const SequenceBatch batch = batch_of({60, 1, 33});
  const std::vector<std::int32_t> ids = token_ids(94, 8192);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    Decoder resident(checkpoint, {.dtype = dtype}), streamed(checkpoint, {.dtype = dtype, .stream_layers = true});
    FullAttention attention;
    const at::Tensor expected = resident.forward(ids, batch, attention);
    EXPECT_TRUE(at::equal(streamed.forward(ids, batch, attention), expected));
    EXPECT_TRUE(at::equal(streamed.forward(ids, batch, attention), expected));  // and again, from the first layer
    EXPECT_EQ(expected.scalar_type(), dtype);
    EXPECT_EQ(resident.logits(expected).scalar_type(), at::kFloat);
  }
}

TEST(Decoder, StreamingHoldsOneLayer) {
  const Checkpoint checkpoint = sample("tiny-qwen3");
  Decoder decoder(checkpoint, {.stream_layers = true});
  const at::Tensor first = decoder.layer_weights(0).q;
  EXPECT_EQ(first.use_count(), 2);
  EXPECT_TRUE(decoder.layer_weights(0).q.is_same(first));
  EXPECT_FALSE(at::equal(decoder.layer_weights(1).q, first));
  EXPECT_EQ(first.use_count(), 1);  // ours is the last one
}

TEST(Decoder, PackedSequencesEqualSeparateRuns) {
  const Checkpoint checkpoint = sample("tiny-qwen3");
  Decoder decoder(checkpoint, {});
  FullAttention attention;
  const std::vector<std::int32_t> ids = token_ids(94, 8192);
  const at::Tensor packed = decoder.logits(decoder.forward(ids, batch_of({60, 1, 33}), attention));
  std::int64_t offset = 0;
  for (const std::int64_t n : {60, 1, 33}) {
    const std::vector<std::int32_t> part(ids.begin() + offset, ids.begin() + offset + n);
    const at::Tensor alone = decoder.logits(decoder.forward(part, batch_of({n}), attention));
    EXPECT_TRUE(at::allclose(alone, packed.narrow(0, offset, n), 1e-4, 1e-4));  // matrix products may block otherwise
    offset += n;
  }
}

TEST(Decoder, EarlierLogitsDoNotDependOnLaterTokens) {
  const Checkpoint checkpoint = sample("tiny-qwen3");
  Decoder decoder(checkpoint, {});
  FullAttention attention;
  std::vector<std::int32_t> ids = token_ids(50, 8192);
  const at::Tensor before = decoder.forward(ids, batch_of({50}), attention);
  for (int i = 30; i < 50; ++i) ids[i] = 5;
  const at::Tensor after = decoder.forward(ids, batch_of({50}), attention);
  EXPECT_TRUE(at::equal(before.narrow(0, 0, 30), after.narrow(0, 0, 30)));
  EXPECT_FALSE(at::allclose(before.narrow(0, 30, 20), after.narrow(0, 30, 20)));
}

TEST(Decoder, RepeatedRunsGiveTheSameBits) {
  const Checkpoint checkpoint = sample("tiny-qwen3-outliers");
  Decoder decoder(checkpoint, {});
  FullAttention attention;
  const std::vector<std::int32_t> ids = token_ids(200, 8192);
  const at::Tensor first = decoder.forward(ids, batch_of({200}), attention);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(decoder.forward(ids, batch_of({200}), attention), first));
}

TEST(Decoder, PositionsOfALaterStepFollowTheStarts) {
  // With attention that returns v, tokens meet nowhere: a step with one token equals that row of the whole run.
  struct Probe : Attention {
    std::vector<at::Tensor> q;
    at::Tensor attend(const AttentionInput& input) override {
      q.push_back(input.q);
      return input.v.repeat_interleave(input.q.size(1) / input.v.size(1), 1);
    }
  };
  const TempDirectory directory;
  const Checkpoint checkpoint = TinyCheckpoint().write(directory.path());
  Decoder decoder(checkpoint, {});
  Probe whole, step, elsewhere;
  const std::vector<std::int32_t> ids = token_ids(9, 31);
  const at::Tensor all = decoder.forward(ids, batch_of({9}), whole);
  SequenceBatch last = batch_of({1});
  last.starts = {8};
  EXPECT_TRUE(at::allclose(decoder.forward({ids[8]}, last, step)[0], all[8], 1e-5, 1e-5));
  last.starts = {7};
  EXPECT_TRUE(at::allclose(decoder.forward({ids[8]}, last, elsewhere)[0], all[8], 1e-5, 1e-5));
  for (int layer = 0; layer < 3; ++layer) {
    EXPECT_TRUE(at::allclose(step.q[layer][0], whole.q[layer][8], 1e-5, 1e-5));
    EXPECT_FALSE(at::allclose(elsewhere.q[layer][0], whole.q[layer][8], 1e-2, 1e-2));
  }
}

TEST(Decoder, TokenOutsideTheVocabularyIsRefused) {
  const TempDirectory directory;
  const Checkpoint checkpoint = TinyCheckpoint().write(directory.path());
  Decoder decoder(checkpoint, {});
  EXPECT_THAT(message_of<InputError>([&] {
                decoder.embed({3, 31});
              }),
              testing::AllOf(testing::HasSubstr("31"), testing::HasSubstr("position 1")));
  EXPECT_THROW(decoder.embed({-1}), InputError);
  EXPECT_EQ(decoder.embed({}).size(0), 0);
}

TEST(Decoder, LayersAndBatchesOutOfRangeAreProgrammingErrors) {
  const TempDirectory directory;
  const Checkpoint checkpoint = TinyCheckpoint().write(directory.path());
  Decoder decoder(checkpoint, {});
  FullAttention attention;
  EXPECT_THROW(decoder.layer_weights(3), std::out_of_range);
  EXPECT_THROW(decoder.layer_weights(-1), std::out_of_range);
  EXPECT_THROW(decoder.run_layer(0, decoder.embed({1, 2}), batch_of({3}), attention), std::invalid_argument);
}

TEST(Decoder, AnEmptyBatchIsEmpty) {
  const TempDirectory directory;
  const Checkpoint checkpoint = TinyCheckpoint().write(directory.path());
  Decoder decoder(checkpoint, {});
  FullAttention attention;
  const at::Tensor hidden = decoder.forward({}, batch_of({0}), attention);
  EXPECT_EQ(hidden.size(0), 0);
  EXPECT_EQ(decoder.logits(hidden).size(1), 31);
}

}  // namespace
}  // namespace oscar
