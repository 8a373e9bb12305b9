// Tuning on the sample model with short contexts: what it measures, what it keeps, and going on after a stop.
#include "tune/tune.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/errors.h"
#include "base/random.h"
#include "bundle/from_fit.h"
#include "moments/collect.h"
#include "support/paths.h"
#include "support/temp_directory.h"

namespace oscar {
namespace {

using testing::HasSubstr;

constexpr const char* kModel = OSCAR_SOURCE_DIR "/sample_data/tiny-qwen3-outliers";

std::vector<std::int32_t> random_ids(std::uint64_t seed, int count) {
  std::vector<std::int32_t> ids;
  for (int t = 0; t < count; ++t) {
    ids.push_back(static_cast<std::int32_t>(random_bits(seed, static_cast<std::uint64_t>(t % 61), 0) % 8000));
  }
  return ids;
}

class Tune : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    TempDirectory dir;
    checkpoint_ = new Checkpoint(Checkpoint::open(locate_model(kModel)));
    tokenizer_ = new Tokenizer(Tokenizer::from_file(fs::path(kModel) / "tokenizer.json"));
    decoder_ = new Decoder(*checkpoint_, {});
    PromptSet prompts;
    prompts.sha256 = "set";
    for (int i = 0; i < 3; ++i) {
      prompts.prompts.push_back(
          {"p:" + std::to_string(i), "input_ids", random_ids(static_cast<std::uint64_t>(i), 150)});
    }
    CollectOptions options;
    options.output = dir / "s";
    options.far = {8, 24, true};
    collect(*checkpoint_, prompts, make_token_plan(prompts, 1000, 200), options);
    statistics_ = new Statistics(load_statistics(dir / "s"));
  }
  static void TearDownTestSuite() { delete statistics_, delete decoder_, delete tokenizer_, delete checkpoint_; }

  Tune() {
    base_.method = "waterfill";
    base_.scope = Scope::kHead;
    base_.value_target = ValueTarget::kOutput;
    base_.clip = ClipMode::kNone;
    base_.encoder = Encoder::kSearch;
    base_.center = Center::kMean;
    base_.bits = 1.5;
    options_.text = random_ids(9, 3 * 96);
    options_.text_name = "text";
    options_.context = 96;
    options_.sequences = 1;
    options_.prompts = 0;
    options_.windows = {8, 24};
    options_.on_trial = [this](const std::string&, std::int64_t done, std::int64_t) {
      trials_ = done;
      if (done == stop_at_) throw InterruptedError("stopped by the test");
    };
  }

  TuneResult run() { return tune(*statistics_, base_, *checkpoint_, *decoder_, *tokenizer_, options_); }

  static Checkpoint* checkpoint_;
  static Tokenizer* tokenizer_;
  static Decoder* decoder_;
  static Statistics* statistics_;
  TempDirectory dir_;
  FitOptions base_;
  TuneOptions options_;
  std::int64_t trials_ = 0, stop_at_ = -1;
};
Checkpoint* Tune::checkpoint_ = nullptr;
Tokenizer* Tune::tokenizer_ = nullptr;
Decoder* Tune::decoder_ = nullptr;
Statistics* Tune::statistics_ = nullptr;

TEST_F(Tune, TheBaselineCostsNothingAndBitsPay) {
  TuneSplit split;
  split.sequences = {random_ids(5, 96)};
  split.prompts = {{random_ids(6, 80), 70}};
  const WindowPolicy windows{8, 24, 1};
  SplitEvaluator evaluator(*decoder_, split, windows);
  const Score exact = evaluator.evaluate(make_method("bf16", checkpoint_->config(), nullptr, windows));
  EXPECT_EQ(exact.text_kl, 0.0);
  EXPECT_EQ(exact.retrieval_kl, 0.0);
  EXPECT_EQ(exact.solved, 1.0);
  double previous = 1e9;
  for (const double bits : {1.25, 2.25, 4.25}) {
    base_.bits = bits;
    const Bundle bundle = bundle_from_fit(*statistics_, base_, fit(*statistics_, base_), options_.windows, {});
    const Score score = evaluator.evaluate(make_method("waterfill", checkpoint_->config(), &bundle, windows));
    EXPECT_LT(score.text_kl, previous) << bits;
    previous = score.text_kl;
  }
  EXPECT_LT(previous, 0.1);
}

TEST_F(Tune, MeasuresChoosesAndScores) {
  const TuneResult r = run();
  EXPECT_EQ(r.key_sensitivity.size(), 4u);
  for (const double s : r.key_sensitivity) EXPECT_GT(s, 0.0);
  EXPECT_GT(r.closed_form.text_kl, 0.0);
  if (r.closed_form_kept) {
    EXPECT_EQ(r.chosen.text_kl, r.closed_form.text_kl);
  }
  EXPECT_EQ(static_cast<std::int64_t>(r.trials.size()), r.closed_form_kept ? trials_ - 1 : trials_);
  const TuneResult again = run();
  EXPECT_EQ(r.trials, again.trials);
  EXPECT_EQ(r.options.key_weights, again.options.key_weights);
}

TEST_F(Tune, GoesOnFromItsLog) {
  const TuneResult whole = run();
  options_.log = dir_ / "tune.json";
  stop_at_ = 6;
  EXPECT_THROW(run(), InterruptedError);
  EXPECT_EQ(read_json(options_.log)["trials"].size(), 6u);
  stop_at_ = -1;
  const TuneResult resumed = run();
  EXPECT_EQ(resumed.trials, whole.trials);
  EXPECT_EQ(resumed.options.damping, whole.options.damping);
  // Trials of another budget are not taken over.
  base_.bits = 2.0;
  stop_at_ = 1;
  EXPECT_THROW(run(), InterruptedError);
  EXPECT_EQ(read_json(options_.log)["trials"].size(), 1u);
}

TEST_F(Tune, RefusesWhatItCannotTune) {
  options_.text = random_ids(9, 2 * 96);
  try {
    run();
    FAIL();
  } catch (const InputError& e) {
    EXPECT_THAT(e.what(), HasSubstr("too short to tune on"));
  }
  base_.method = "oscar";
  EXPECT_THROW(run(), UsageError);
}

TEST_F(Tune, BalancedHasNoLayersToMeasureButAClip) {
  base_.method = "balanced";
  const TuneResult r = run();
  EXPECT_TRUE(r.key_sensitivity.empty());
  std::size_t clips = 0;
  for (const Json& trial : r.trials) clips += trial["trial"]["options"].contains("clip") ? 1 : 0;
  EXPECT_GE(clips, 2u);
  EXPECT_EQ(r.trials.size(), r.closed_form_kept ? 8u : 9u);
}

TEST(TuneWindows, TakeAsManyBytes) {
  EXPECT_DOUBLE_EQ(bits_for_windows(2.25, {64, 256}, {64, 256}, 2048), 2.25);
  const double bits = bits_for_windows(2.25, {64, 256}, {32, 128}, 2048);
  EXPECT_NEAR(bits * (2048 - 160) + 16.0 * 160, 2.25 * (2048 - 320) + 16.0 * 320, 1e-9);
  EXPECT_LT(bits_for_windows(2.25, {64, 256}, {64, 512}, 2048), 2.25);
}

TEST_F(Tune, TriesOtherWindowsAtEqualBytes) {
  base_.bits = 2.25;
  options_.window_choices = {{4, 20}, {8, 26}};
  const TuneResult r = run();
  std::size_t found = 0;
  for (const Json& trial : r.trials) {
    if (!trial["trial"].contains("options") || !trial["trial"]["options"].contains("windows")) continue;
    const Json& w = trial["trial"]["options"]["windows"];
    const Windows windows{w[0].get<std::int64_t>(), w[1].get<std::int64_t>()};
    EXPECT_DOUBLE_EQ(trial["trial"]["options"]["bits"].get<double>(), bits_for_windows(2.25, {8, 24}, windows, 96));
    if (trial["trial"]["split"] == 1) ++found;
  }
  EXPECT_EQ(found, 2u);
  const bool won = r.windows.sink != 8 || r.windows.recent != 24;
  EXPECT_EQ(won, r.options.bits != 2.25);
  options_.window_choices = {{8, 60}};  // would leave no bits
  EXPECT_THROW(run(), UsageError);
  options_.window_choices = {{4, 20}};
  base_.method = "balanced";
  EXPECT_THROW(run(), UsageError);
}

}  // namespace
}  // namespace oscar
