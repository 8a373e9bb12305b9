// The whole measurement on the sample models, with small windows so that short sequences leave them.
#include "verify/runner.h"

#include <gtest/gtest.h>

#include <random>

#include "base/errors.h"
#include "support/paths.h"
#include "verify/self_checks.h"
#include "verify/task_runner.h"

namespace oscar {
namespace {

constexpr WindowPolicy kWindows{16, 32, 1};

struct Loaded {
  Checkpoint checkpoint;
  Decoder decoder;
  explicit Loaded(const std::string& name)
      : checkpoint(Checkpoint::open(locate_model(OSCAR_SOURCE_DIR "/sample_data/" + name))),
        decoder(checkpoint, DecoderOptions{}) {}
  KvMethod method(const std::string& id) const { return make_method(id, checkpoint.config(), nullptr, kWindows); }
};

Loaded& plain() {
  static Loaded model("tiny-qwen3");
  return model;
}
Loaded& outliers() {
  static Loaded model("tiny-qwen3-outliers");
  return model;
}

// Phrases that come again, so that attention to far tokens matters.
SequenceSet sequences(std::int64_t context, int count) {
  std::mt19937 random(5);
  std::vector<std::int32_t> text;
  std::vector<std::int32_t> phrase(24);
  while (std::ssize(text) < context * count) {
    if (text.size() % 96 == 0) {
      for (std::int32_t& id : phrase) id = static_cast<std::int32_t>(300 + random() % 4000);
    }
    text.insert(text.end(), phrase.begin(), phrase.end());
  }
  return cut_sequences(text, {context, 0, count, 8192, {}}, kWindows);
}

RunnerOptions both_paths() {
  RunnerOptions options;
  options.prefill = options.decode = true;
  options.first_position = first_scored_position(kWindows);
  options.layer_sequences = 2;
  options.decode_batch = 2;
  return options;
}

RunnerResult run(Loaded& model, const std::vector<KvMethod>& methods, const SequenceSet& set,
                 const RunnerOptions& options) {
  std::vector<const KvMethod*> list;
  for (const KvMethod& m : methods) list.push_back(&m);
  return run_methods(model.decoder, list, model.method("bf16"), set, options);
}

double mean_kl(const ScoredMethod& scored) { return summarise(scored.scores, {}).kl.mean; }

TEST(Runner, NullRunIsExactAndThePathsAgree) {
  const std::vector<KvMethod> methods = {plain().method("bf16"), plain().method("naive2"), plain().method("hadamard2")};
  const SequenceSet set = sequences(144, 3);
  const RunnerResult r = run(plain(), methods, set, both_paths());
  EXPECT_EQ(r.null_kl, 0.0);
  EXPECT_EQ(r.null_tokens, 144 - 48 - 1);
  EXPECT_EQ(r.tokens, 3 * (144 - 48 - 1));
  ASSERT_EQ(r.scored.size(), 6u);
  EXPECT_EQ(r.scored[0].path, "prefill");
  EXPECT_EQ(mean_kl(r.scored[0]), 0.0);
  EXPECT_LT(mean_kl(r.scored[1]), 1e-5);  // BF16 through the paged cache
  for (std::size_t m = 1; m < 3; ++m) {
    EXPECT_GT(mean_kl(r.scored[2 * m]), 1e-3);
    EXPECT_NEAR(mean_kl(r.scored[2 * m + 1]) / mean_kl(r.scored[2 * m]), 1.0, 0.05);
    EXPECT_LT(r.path_difference[m].mean, 0.05 * mean_kl(r.scored[2 * m]));
    EXPECT_EQ(r.caches[m].differing, 0);
    EXPECT_EQ(r.caches[m].rows, 4 * 2 * 2 * (144 - 48));  // layers, KV heads, K and V
    ASSERT_EQ(r.layers[m].size(), 4u);
    for (const LayerError& e : r.layers[m]) {
      EXPECT_GT(e.mean.k_logit, 0.01);
      EXPECT_LT(e.mean.k_logit, 1.5);
      EXPECT_GT(e.mean.attention_output, 0.001);
    }
  }
  EXPECT_TRUE(r.layers[0].empty());
  EXPECT_GT(r.caches[0].allocated_bytes, 2 * r.caches[1].allocated_bytes);
  for (const SelfCheck& check : self_checks({}, r, "", false, false)) EXPECT_NE(check.pass, false) << check.detail;
}

// A decode row of the given mean KL, and the paths this far apart.
SelfCheck path_check(std::vector<std::pair<double, double>> own_and_difference) {
  RunnerResult r;
  std::vector<KvMethod> methods(own_and_difference.size());
  for (std::size_t i = 0; i < methods.size(); ++i) {
    methods[i].id = std::string(1, static_cast<char>('a' + i));
    SequenceScores scores{0, {}, {}, {}, {}};
    scores.kl.assign(4, own_and_difference[i].first);
    scores.nll = scores.baseline_nll = std::vector<double>(4, 1.0);
    scores.same_top.assign(4, 1);
    r.scored.push_back({&methods[i], "decode", {scores}});
    KlMetrics kl;
    kl.mean = own_and_difference[i].second;
    r.path_difference.push_back(kl);
  }
  return self_checks({}, r, "", false, false).back();
}

TEST(SelfChecks, PathsMustAgreeForMethodsThatFollowTheModel) {
  EXPECT_EQ(path_check({{0.1, 0.009}}).pass, true);
  EXPECT_EQ(path_check({{0.1, 0.011}}).pass, false);
  EXPECT_EQ(path_check({{0.1, 0.011}, {0.1, 0.001}}).pass, false);
  const SelfCheck lost = path_check({{0.1, 0.001}, {9.0, 4.0}});
  EXPECT_EQ(lost.pass, true);
  EXPECT_NE(lost.detail.find("not judged, more than 1 nat from BF16: b"), std::string::npos) << lost.detail;
  EXPECT_EQ(path_check({{9.0, 4.0}}).pass, std::nullopt);
}

TEST(Runner, OutliersBreakTheUnrotatedCodeMost) {
  const std::vector<KvMethod> methods = {outliers().method("naive2"), outliers().method("hadamard2")};
  RunnerOptions options = both_paths();
  options.decode = false;
  const RunnerResult r = run(outliers(), methods, sequences(192, 2), options);
  EXPECT_TRUE(r.path_difference.empty());
  EXPECT_GT(mean_kl(r.scored[0]), 1.0);
  EXPECT_LT(mean_kl(r.scored[1]), mean_kl(r.scored[0]));
}

TEST(Runner, TwoRunsAreEqualToTheBit) {
  RunnerOptions options = both_paths();
  const std::vector<KvMethod> methods = {plain().method("naive2")};
  const SequenceSet set = sequences(112, 2);
  const RunnerResult a = run(plain(), methods, set, options), b = run(plain(), methods, set, options);
  for (std::size_t i = 0; i < a.scored.size(); ++i) {
    for (std::size_t s = 0; s < 2; ++s) {
      EXPECT_EQ(a.scored[i].scores[s].kl, b.scored[i].scores[s].kl);
      EXPECT_EQ(a.scored[i].scores[s].nll, b.scored[i].scores[s].nll);
    }
  }
}

TEST(Runner, ScoresDoNotDependOnTheDecodeBatch) {
  RunnerOptions options = both_paths();
  options.prefill = false;
  const std::vector<KvMethod> methods = {plain().method("naive2")};
  const SequenceSet set = sequences(112, 3);
  options.decode_batch = 3;
  const RunnerResult a = run(plain(), methods, set, options);
  options.decode_batch = 1;
  const RunnerResult b = run(plain(), methods, set, options);
  ASSERT_EQ(a.scored.size(), 1u);
  EXPECT_EQ(a.scored[0].path, "decode");
  EXPECT_NEAR(mean_kl(a.scored[0]) / mean_kl(b.scored[0]), 1.0, 0.02);
}

TEST(Runner, NeedlesAreFoundByBothPaths) {
  const Tokenizer tokenizer = Tokenizer::from_file(OSCAR_SOURCE_DIR "/sample_data/tiny-qwen3/tokenizer.json");
  const TaskSet set = make_task("niah", 320, 5, 1, tokenizer);
  const KvMethod bf16 = plain().method("bf16"), hadamard = plain().method("hadamard2");
  const KvMethod broken = outliers().method("naive2");
  for (const char* path : {"prefill", "decode"}) {
    const std::vector<TaskScore> scores = run_task(plain().decoder, {&bf16, &hadamard}, bf16, set, path);
    EXPECT_GE(scores[0].n, 3) << path;  // the sample model can do this
    EXPECT_EQ(scores[0].score, 1.0) << path;
    EXPECT_EQ(scores[1].n, scores[0].n);
    EXPECT_GE(*scores[1].score, 0.5) << path;
    const std::vector<TaskScore> lost = run_task(outliers().decoder, {&broken}, outliers().method("bf16"), set, path);
    EXPECT_EQ(lost[0].score, 0.0) << path;
  }
}

}  // namespace
}  // namespace oscar
