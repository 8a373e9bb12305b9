// The whole measurement on the sample models, with small windows so that short sequences leave them.
#include "verify/runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <random>

#include "base/errors.h"
#include "support/altered_tensors.h"
#include "support/message_of.h"
#include "support/paths.h"
#include "support/temp_directory.h"
#include "verify/self_checks.h"
#include "verify/task_runner.h"

namespace oscar {
namespace {

constexpr CacheWindows kWindows{16, 32, 1};

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

double mean_kl(const RunnerResult& r, std::size_t row) { return summarize(r.scores.row(row), {}).kl.mean; }

TEST(Runner, NullRunIsExactAndThePathsAgree) {
  const std::vector<KvMethod> methods = {plain().method("bf16"), plain().method("naive2"), plain().method("hadamard2")};
  const SequenceSet set = sequences(144, 3);
  const RunnerResult r = run(plain(), methods, set, both_paths());
  EXPECT_EQ(r.null_kl, 0.0);
  EXPECT_EQ(r.null_tokens, 144 - 48 - 1);
  EXPECT_EQ(r.tokens, 3 * (144 - 48 - 1));
  ASSERT_EQ(r.scored.size(), 6u);
  EXPECT_EQ(r.scored[0].path, "prefill");
  EXPECT_EQ(mean_kl(r, 0), 0.0);
  EXPECT_LT(mean_kl(r, 1), 1e-5);  // BF16 through the paged cache
  for (std::size_t m = 1; m < 3; ++m) {
    EXPECT_GT(mean_kl(r, 2 * m), 1e-3);
    EXPECT_NEAR(mean_kl(r, 2 * m + 1) / mean_kl(r, 2 * m), 1.0, 0.05);
    EXPECT_LT(r.path_difference[m].mean, 0.05 * mean_kl(r, 2 * m));
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
  for (const SelfCheck& check : self_checks({}, r, false)) EXPECT_NE(check.pass, false) << check.detail;
}

// A decode row of the given mean KL, and the paths this far apart.
SelfCheck path_check(std::vector<std::pair<double, double>> own_and_difference) {
  RunnerResult r;
  std::vector<std::vector<SequenceScores>> rows;
  std::vector<KvMethod> methods(own_and_difference.size());
  for (std::size_t i = 0; i < methods.size(); ++i) {
    methods[i].id = std::string(1, static_cast<char>('a' + i));
    SequenceScores scores{0, {}, {}, {}, {}};
    scores.kl.assign(4, own_and_difference[i].first);
    scores.nll = scores.baseline_nll = std::vector<double>(4, 1.0);
    scores.same_top.assign(4, 1);
    r.scored.push_back({&methods[i], "decode"});
    rows.push_back({scores});
    KlMetrics kl;
    kl.mean = own_and_difference[i].second;
    r.path_difference.push_back(kl);
  }
  r.scores.add_group(rows, {});
  for (const SelfCheck& check : self_checks({}, r, false)) {
    if (check.name == "prefill_decode") return check;
  }
  throw std::logic_error("no such check");
}

TEST(SelfChecks, PathsMustAgreeForMethodsThatFollowTheModel) {
  EXPECT_EQ(path_check({{0.1, 0.009}}).pass, true);
  EXPECT_EQ(path_check({{0.1, 0.011}}).pass, false);
  EXPECT_EQ(path_check({{0.1, 0.011}, {0.1, 0.001}}).pass, false);
  const SelfCheck lost = path_check({{0.1, 0.001}, {9.0, 4.0}});
  EXPECT_EQ(lost.pass, true);
  EXPECT_NE(lost.detail.find("not tested, more than 1 nat from BF16: b"), std::string::npos) << lost.detail;
  EXPECT_EQ(path_check({{9.0, 4.0}}).pass, std::nullopt);
}

TEST(Runner, OutliersBreakTheUnrotatedCodeMost) {
  const std::vector<KvMethod> methods = {outliers().method("naive2"), outliers().method("hadamard2")};
  RunnerOptions options = both_paths();
  options.decode = false;
  const RunnerResult r = run(outliers(), methods, sequences(192, 2), options);
  EXPECT_TRUE(r.path_difference.empty());
  EXPECT_GT(mean_kl(r, 0), 1.0);
  EXPECT_LT(mean_kl(r, 1), mean_kl(r, 0));
}

TEST(Runner, TwoRunsAreEqualToTheBit) {
  RunnerOptions options = both_paths();
  const std::vector<KvMethod> methods = {plain().method("naive2")};
  const SequenceSet set = sequences(112, 2);
  const RunnerResult a = run(plain(), methods, set, options), b = run(plain(), methods, set, options);
  for (std::size_t i = 0; i < a.scored.size(); ++i) {
    for (std::size_t s = 0; s < 2; ++s) {
      EXPECT_EQ(a.scores.row(i)[s].kl, b.scores.row(i)[s].kl);
      EXPECT_EQ(a.scores.row(i)[s].nll, b.scores.row(i)[s].nll);
    }
  }
}

TEST(Runner, TheLastTokensAreDecodedAfterACacheThatAnExactPassFilled) {
  const std::vector<KvMethod> methods = {plain().method("bf16"), plain().method("naive2"), plain().method("hadamard2")};
  const SequenceSet set = sequences(200, 2);
  RunnerOptions options = both_paths();
  options.first_position = 200 - 40;
  const RunnerResult whole = run(plain(), methods, set, options);
  options.decode_last = 40;
  const RunnerResult tail = run(plain(), methods, set, options);
  ASSERT_EQ(tail.scored.size(), whole.scored.size());
  EXPECT_EQ(tail.tokens, whole.tokens);
  for (std::size_t m = 0; m < methods.size(); ++m) {
    for (std::size_t s = 0; s < 2; ++s) {
      EXPECT_EQ(tail.scores.row(2 * m)[s].kl, whole.scores.row(2 * m)[s].kl) << methods[m].id << ", prefill";
      EXPECT_EQ(tail.scores.row(2 * m + 1)[s].kl.size(), 39u);
    }
    const double all = mean_kl(whole, 2 * m + 1), last = mean_kl(tail, 2 * m + 1);
    EXPECT_GT(last, 0.0) << methods[m].id << ": nothing was decoded";
    if (methods[m].quantized) {  // its prompt attends in BF16
      EXPECT_LT(last, 0.9 * all) << methods[m].id;
    } else {
      EXPECT_LT(last, 1e-4);
    }
  }
  EXPECT_TRUE(tail.path_difference.empty()) << "the prefill path reads codes where the other one has read none";
}

TEST(Runner, DecodingTheLastTokensGoesOnFromEveryRecord) {
  const std::vector<KvMethod> methods = {plain().method("bf16"), plain().method("naive2")};
  const SequenceSet set = sequences(112, 2);
  RunnerOptions options = both_paths();
  options.first_position = 112 - 20, options.decode_last = 20;
  const RunnerResult whole = run(plain(), methods, set, options);
  const Json identity = {{"tool_version", "1"}, {"threads", 1}, {"options", Json::object()}};
  const TempDirectory directory;
  const fs::path path = directory.path() / "work";
  for (const char* lost : {"", "group-00001.safetensors", "group-00000.safetensors"}) {
    if (*lost != '\0') {
      ASSERT_TRUE(fs::remove(path / lost)) << lost;
    }
    const VerifyWork work(path, identity, true);
    options.work = &work;
    const RunnerResult r = run(plain(), methods, set, options);
    for (std::size_t i = 0; i < whole.scored.size(); ++i) {
      for (std::size_t s = 0; s < 2; ++s) EXPECT_EQ(r.scores.row(i)[s].kl, whole.scores.row(i)[s].kl) << lost;
    }
  }
}

// Every state that a killed run can leave: after each record that is written. Going on from it gives the same numbers.
TEST(Runner, PagesCheckedBesideThePassesGiveTheSame) {
  const std::vector<KvMethod> methods = {outliers().method("bf16"), outliers().method("naive2"),
                                         outliers().method("kivi2")};
  const SequenceSet set = sequences(200, 2);
  RunnerOptions options = both_paths();
  const RunnerResult in_turn = run(outliers(), methods, set, options);
  options.background_checks = true;
  const RunnerResult beside = run(outliers(), methods, set, options);
  ASSERT_EQ(beside.caches.size(), in_turn.caches.size());
  for (std::size_t m = 0; m < methods.size(); ++m) {
    EXPECT_EQ(beside.caches[m].rows, in_turn.caches[m].rows);
    EXPECT_EQ(beside.caches[m].read, in_turn.caches[m].read);
    EXPECT_EQ(beside.caches[m].reader_error, in_turn.caches[m].reader_error);
    EXPECT_EQ(beside.caches[m].allocated_bytes, in_turn.caches[m].allocated_bytes);
    EXPECT_EQ(mean_kl(beside, 2 * m), mean_kl(in_turn, 2 * m));
  }
  EXPECT_GT(beside.caches[1].rows, 0);
}

TEST(Runner, GoesOnFromEveryRecord) {
  RunnerOptions options = both_paths();
  const std::vector<KvMethod> methods = {plain().method("bf16"), plain().method("naive2")};
  const SequenceSet set = sequences(112, 3);
  const RunnerResult whole = run(plain(), methods, set, options);
  const Json identity = {{"tool_version", "1"}, {"threads", 1}, {"options", Json::object()}};
  const TempDirectory directory;
  const auto go_on = [&](const fs::path& path) {
    const VerifyWork work(path, identity, true);
    options.work = &work;
    const RunnerResult r = run(plain(), methods, set, options);
    EXPECT_EQ(r.tokens, whole.tokens);
    EXPECT_EQ(r.null_tokens, whole.null_tokens);
    for (std::size_t i = 0; i < whole.scored.size(); ++i) {
      ASSERT_EQ(r.scores.row(i).size(), 3u);
      for (std::size_t s = 0; s < 3; ++s) EXPECT_EQ(r.scores.row(i)[s].kl, whole.scores.row(i)[s].kl);
    }
    EXPECT_EQ(r.layers[1][2].mean.k_logit, whole.layers[1][2].mean.k_logit);
    EXPECT_EQ(r.layers[1][2].heads[1].attention_kl, whole.layers[1][2].heads[1].attention_kl);
    EXPECT_EQ(r.caches[1].rows, whole.caches[1].rows);
    EXPECT_EQ(r.caches[1].allocated_bytes, whole.caches[1].allocated_bytes);
    EXPECT_EQ(r.path_difference[1].mean, whole.path_difference[1].mean);
  };
  const fs::path path = directory.path() / "work";
  go_on(path);
  ASSERT_TRUE(fs::exists(path / "group-00001.safetensors"));
  fs::remove(path / "group-00001.safetensors");  // killed in the second group
  go_on(path);
  fs::remove(path / "group-00000.safetensors");
  fs::remove(path / "group-00001.safetensors");
  go_on(path);
  const VerifyWork work(path, identity, true);
  options.work = &work;
  std::ofstream(path / "group-00001.safetensors", std::ios::trunc) << "short";
  EXPECT_THROW(run(plain(), methods, set, options), InputError);
}

// Zeros, one bit, and another record of the same run: none of them becomes a score.
TEST(VerifyWork, RefusesDamagedAndExchangedRecords) {
  const Json identity = {{"tool_version", "1"}, {"threads", 1}, {"options", Json::object()}};
  const TempDirectory directory;
  const VerifyWork work(directory.path() / "work", identity, false);
  work.save("group-00001", {{"row0", std::vector<double>(320, 0.25)}});
  work.save("group-00000", {{"row0", std::vector<double>(320, 0.75)}});
  const fs::path file = work.file("group-00000");
  const std::string good = read_file(file);
  const auto refusal = [&](std::string bytes) {
    write_file_atomic(file, bytes);
    const std::string message = message_of<InputError>([&] { work.load("group-00000"); });
    EXPECT_EQ(message, message_of<InputError>([&] { work.load_list("group-00000", "row0"); }));
    return message;
  };
  std::string zeros = good, bit = good;
  std::fill(zeros.begin() + std::ssize(zeros) / 2, zeros.end(), '\0');
  bit[bit.size() * 2 / 3] = static_cast<char>(bit[bit.size() * 2 / 3] ^ 16);
  EXPECT_NE(refusal(zeros).find("checksum differs"), std::string::npos);
  EXPECT_NE(refusal(bit).find("checksum differs"), std::string::npos);
  EXPECT_NE(refusal(read_file(work.file("group-00001"))).find("is another file of a run"), std::string::npos);
  write_file_atomic(file, good);
  EXPECT_TRUE(work.load("group-00000").has_value());
  fs::rename(file, directory.path() / "elsewhere");
  fs::create_symlink(directory.path() / "elsewhere", file);
  EXPECT_NE(message_of<InputError>([&] { work.load("group-00000"); }).find("is a link"), std::string::npos);
}

// Every tensor of every kind of record, wrong in every way: refused in a sentence that names the record.
TEST(Runner, RefusesAlteredRecords) {
  RunnerOptions options = both_paths();
  const std::vector<KvMethod> methods = {plain().method("bf16"), plain().method("naive2")};
  const SequenceSet set = sequences(112, 3);
  const Json identity = {{"tool_version", "1"}, {"threads", 1}, {"options", Json::object()}};
  const TempDirectory directory;
  const fs::path path = directory.path() / "work";
  const VerifyWork work(path, identity, true);
  options.work = &work;
  run(plain(), methods, set, options);
  // Scores of every group are read, the sums of the last one.
  std::string group;
  for (const auto& entry : fs::directory_iterator(path)) {
    const std::string name = entry.path().stem().string();
    if (name.starts_with("group-")) group = std::max(group, name);
  }
  const fs::path record = path / (group + ".safetensors");
  const std::string good = read_file(record);
  std::vector<std::string> names;
  const SafetensorsFile opened = SafetensorsFile::open(record);
  for (const TensorView& view : opened.tensors()) names.push_back(view.name);
  ASSERT_EQ(names.size(), 9u);  // four rows, two of paths, two probes, and the null run
  const auto refused = [&](const std::string& how) {
    const std::string sentence = message_of<InputError>([&] { run(plain(), methods, set, options); });
    EXPECT_NE(sentence.find(group), std::string::npos) << how << ": " << sentence;
    EXPECT_NE(sentence.find("delete it to start anew"), std::string::npos) << how << ": " << sentence;
    write_file_atomic(record, good);
  };
  for (const std::string& name : names) {
    std::vector<Alteration> all = alterations();
    all.push_back({"longer by two", [](OwnedTensor& t) {
                     t.shape = {t.shape.at(0) + 2};
                     t.data.resize(t.data.size() + 2 * dtype_size(t.dtype), t.data.front());
                   }});
    for (const Alteration& a : all) {
      rewrite_tensors(record, [&](std::vector<OwnedTensor>& tensors) {
        for (OwnedTensor& t : tensors) {
          if (t.name == name) a.apply(t);
        }
      });
      refused(name + ", " + a.name);
    }
    rewrite_tensors(record, [&](std::vector<OwnedTensor>& tensors) {
      std::erase_if(tensors, [&](const OwnedTensor& t) { return t.name == name; });
    });
    refused(name + " is missing");
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
  EXPECT_NEAR(mean_kl(a, 0) / mean_kl(b, 0), 1.0, 0.02);
}

TEST(Runner, StreamedSequencesGoThroughTheLayersTogetherWithTheSameResult) {
  const Checkpoint checkpoint = Checkpoint::open(locate_model(OSCAR_SOURCE_DIR "/sample_data/tiny-qwen3"));
  DecoderOptions streamed;
  streamed.stream_layers = true;
  Decoder decoder(checkpoint, streamed);
  const std::vector<KvMethod> methods = {plain().method("bf16"), plain().method("naive2"), plain().method("hadamard2")};
  const std::vector<const KvMethod*> list = {&methods[0], &methods[1], &methods[2]};
  const SequenceSet set = sequences(112, 5);
  RunnerOptions options = both_paths();
  options.decode = false;
  const RunnerResult expected = run(plain(), methods, set, options);
  options.streamed_batch = 2;
  const auto check = [&](const RunnerResult& found) {
    EXPECT_EQ(found.tokens, expected.tokens);
    EXPECT_EQ(found.null_kl, expected.null_kl);
    EXPECT_EQ(found.null_tokens, expected.null_tokens);
    for (std::size_t row = 0; row < expected.scored.size(); ++row) {
      const auto a = found.scores.row(row), b = expected.scores.row(row);
      ASSERT_EQ(a.size(), b.size());
      for (std::size_t s = 0; s < a.size(); ++s) EXPECT_EQ(a[s].kl, b[s].kl) << row << ", sequence " << s;
    }
    for (std::size_t m = 0; m < methods.size(); ++m) {
      EXPECT_EQ(found.caches[m].rows, expected.caches[m].rows);
      ASSERT_EQ(found.layers[m].size(), expected.layers[m].size());
      for (std::size_t l = 0; l < found.layers[m].size(); ++l) {
        EXPECT_EQ(found.layers[m][l].mean.k_logit, expected.layers[m][l].mean.k_logit);
      }
    }
  };
  check(run_methods(decoder, list, plain().method("bf16"), set, options));
  const TempDirectory directory;
  const Json identity = {{"tool_version", "1"}, {"threads", 1}, {"options", Json::object()}};
  for (const char* killed_in : {"group-00002.safetensors", "group-00001.safetensors", "group-00000.safetensors"}) {
    {
      const VerifyWork work(directory.path() / "work", identity, true);
      options.work = &work;
      check(run_methods(decoder, list, plain().method("bf16"), set, options));
    }
    ASSERT_TRUE(fs::remove(directory.path() / "work" / killed_in));
  }
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
