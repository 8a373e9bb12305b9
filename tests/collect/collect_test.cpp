// Collection runs on the sample model: determinism, streaming, and stopping anywhere.
#include "collect/collect.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <stdexcept>

#include "base/errors.h"
#include "base/random.h"
#include "collect/collect_estimate.h"
#include "model/weights.h"
#include "statistics/layer_fields.h"
#include "support/altered_tensors.h"
#include "support/paths.h"
#include "support/temp_directory.h"

namespace oscar {
namespace {

using testing::HasSubstr;

constexpr const char* kModel = OSCAR_SOURCE_DIR "/sample_data/tiny-qwen3-outliers";

struct Stopped : std::runtime_error {
  Stopped() : std::runtime_error("stopped by the test") {}
};

// Prompts of random ids with these lengths. The hash is as good as any for tests.
PromptSet random_prompts(const std::vector<int>& lengths, std::uint64_t seed) {
  PromptSet set;
  set.sha256 = "set-" + std::to_string(seed);
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    Prompt p{"p.jsonl:" + std::to_string(i + 1), "input_ids", {}};
    for (int t = 0; t < lengths[i]; ++t) p.ids.push_back(static_cast<std::int32_t>(random_bits(seed, i, t) % 8000));
    set.prompts.push_back(p);
  }
  return set;
}

class Collect : public testing::Test {
 protected:
  Collect() : checkpoint_(Checkpoint::open(locate_model(kModel))), prompts_(random_prompts({40, 70, 9, 33, 64}, 1)) {
    options_.tokens = 200;
    options_.seq_len = 48;
    options_.rows = 24;
    options_.tool_version = "test";
    options_.resume_command = "oscar-collect --resume";
    options_.files = {"p.jsonl"};
  }

  void run(const std::string& output, const PromptSet& prompts) {
    CollectOptions options = options_;
    options.output = dir_ / output;
    collect(checkpoint_, prompts, make_token_plan(prompts, options.tokens, options.seq_len, options.context > 0),
            options);
  }
  void run(const std::string& output) { run(output, prompts_); }

  // A whole run, whose statistics are as large as was estimated, and its estimate.
  std::pair<TokenPlan, CollectEstimate> run_and_estimate() {
    run("out");
    options_.output = dir_ / "out";
    const TokenPlan plan = make_token_plan(prompts_, options_.tokens, options_.seq_len);
    const CollectEstimate estimate = estimate_bytes(checkpoint_, plan, options_);
    const double written = static_cast<double>(fs::file_size(dir_ / "out"));
    EXPECT_NEAR(static_cast<double>(estimate.output_bytes) / written, 1.0, 0.02);
    return {plan, estimate};
  }

  // Runs until the n-th step of this process; true when the run came to its end before that.
  bool run_until(const std::string& output, int n) {
    int calls = 0;
    options_.after_step = [&calls, n] {
      if (++calls == n) throw Stopped();
    };
    try {
      run(output);
      return true;
    } catch (const Stopped&) {
      return false;
    }
  }

  // A run whose states are in memory gives the bytes of one whose states are in files, also when it is stopped after so
  // many steps and then twice more, after those of `again`.
  void expect_held_states_resume(const std::vector<int>& stops, std::pair<int, int> again) {
    run("whole");
    options_.hold_states = true;
    run("held");
    ASSERT_TRUE(bytes("whole") == bytes("held"));
    options_.resume = true;
    options_.work_dir = dir_ / "work";
    for (const double interval : {0.0, 0.004, 1e9}) {
      options_.checkpoint_seconds = interval;
      for (const int n : stops) {
        for (const int more : {n, again.first, again.second}) {
          if (run_until("part", more)) break;
        }
        EXPECT_TRUE(interval < 1.0 || !fs::exists(dir_ / "work" / "point.safetensors"));
        options_.after_step = nullptr;
        if (!fs::exists(dir_ / "part")) run("part");
        ASSERT_TRUE(bytes("whole") == bytes("part")) << "stopped after step " << n << ", interval " << interval;
        EXPECT_FALSE(fs::exists(dir_ / "work"));
        fs::remove(dir_ / "part");
      }
    }
  }

  std::string bytes(const std::string& name) const { return read_file(dir_ / name); }
  template <typename E>
  std::string refusal(const std::string& output) {
    try {
      run(output);
    } catch (const E& e) {
      return e.what();
    }
    return "not refused";
  }

  TempDirectory dir_;
  Checkpoint checkpoint_;
  PromptSet prompts_;
  CollectOptions options_;
};

TEST_F(Collect, RunsAreByteIdentical) {
  run("a");
  run("b");
  EXPECT_TRUE(bytes("a") == bytes("b"));
  EXPECT_FALSE(fs::exists(dir_ / "a.work"));  // nothing but the output is left
  const Statistics s = load_statistics(dir_ / "a");
  EXPECT_EQ(s.tokens, 200);
  EXPECT_EQ(s.layers.size(), 4u);
  EXPECT_EQ(s.layers[0].row_priority.size(), 24u);
  EXPECT_EQ(s.metadata["parts"][0]["prompts"]["shortened"]["source"], "p.jsonl:5");
  EXPECT_GT(s.layers[3].residual_energy[0].item<double>(), 0);
}

TEST_F(Collect, BFloat16) {
  options_.dtype = at::kBFloat16;
  run("half");
  options_.dtype = at::kFloat;
  run("full");
  const Statistics half = load_statistics(dir_ / "half"), full = load_statistics(dir_ / "full");
  for (std::size_t i = 0; i < 4; ++i) {
    const at::Tensor& a = half.layers[i].q_gram;
    const at::Tensor& b = full.layers[i].q_gram;
    EXPECT_LT(((a - b).norm() / b.norm()).item<double>(), 0.05);
  }
}

TEST_F(Collect, StoppedAfterAnyStepItResumesBitForBit) {
  run("whole");
  options_.resume = true;
  options_.work_dir = dir_ / "work";
  for (const double interval : {0.0, 1e9}) {
    options_.checkpoint_seconds = interval;
    for (int n : {1, 2, 5, 6, 7, 12, 13, 19}) {
      if (!run_until("part", n)) {
        while (!run_until("part", 8)) continue;  // and again and again
      }
      ASSERT_TRUE(bytes("whole") == bytes("part")) << "stopped after step " << n;
      fs::remove(dir_ / "part");
    }
  }
}

// Packed prompts are one text: what attention and positions see does not depend on the borders.
TEST_F(Collect, PackedPromptsAreCollectedAsOneText) {
  options_.far = {4, 20, true};
  PromptSet one;
  one.sha256 = prompts_.sha256;
  one.prompts.push_back({"p.jsonl:1", "input_ids", {}});
  for (const Prompt& p : prompts_.prompts) {
    one.prompts[0].ids.insert(one.prompts[0].ids.end(), p.ids.begin(), p.ids.end());
  }
  run("one", one);
  options_.context = 48;
  run("packed");
  const Statistics joined = load_statistics(dir_ / "one"), packed = load_statistics(dir_ / "packed");
  EXPECT_EQ(packed.tokens, 200);
  EXPECT_EQ(packed.metadata["parts"][0]["sequences"], 5);  // 4 of 48 tokens and 1 of 8
  EXPECT_EQ(packed.metadata["parts"][0]["longest_sequence"], 48);
  EXPECT_EQ(packed.metadata["parts"][0]["options"]["context"], 48);
  EXPECT_EQ(packed.metadata["parts"][0]["prompts"]["used"], 5);
  for (std::size_t i = 0; i < packed.layers.size(); ++i) {
    const auto expect_same = [&](const auto& fields) {
      for (const auto& f : fields) {
        EXPECT_TRUE((packed.layers[i].*f.tensor).equal(joined.layers[i].*f.tensor)) << f.name << " of layer " << i;
      }
    };
    expect_same(kMomentFields);
    expect_same(kFarPairFields);
    expect_same(kRowFields);
    EXPECT_EQ(packed.layers[i].row_position, joined.layers[i].row_position);
  }
}

TEST_F(Collect, PackedRunsResumeBitForBit) {
  options_.context = 48;
  run("whole");
  options_.resume = true;
  options_.work_dir = dir_ / "work";
  options_.checkpoint_seconds = 0;
  for (const int n : {1, 3, 5, 8}) {
    if (!run_until("part", n)) {
      while (!run_until("part", 8)) continue;
    }
    ASSERT_TRUE(bytes("whole") == bytes("part")) << "stopped after step " << n;
    fs::remove(dir_ / "part");
  }
}

// Hidden states in memory, as on a GPU: states are saved when they are due alone, and none at all may be.
TEST_F(Collect, HeldStatesResumeBitForBit) { expect_held_states_resume({1, 6, 7, 13, 15, 20}, {4, 9}); }

TEST_F(Collect, ResumeKeepsTheThreadCount) {
  const int threads = at::get_num_threads();
  options_.resume = true;
  run("whole");
  ASSERT_FALSE(run_until("part", 3));
  at::set_num_threads(threads == 1 ? 2 : 1);
  options_.after_step = nullptr;
  run("part");
  at::set_num_threads(threads);
  EXPECT_TRUE(bytes("whole") == bytes("part"));
}

TEST_F(Collect, AnotherRunInTheDirectoryIsRefusedByName) {
  options_.work_dir = dir_ / "work";
  ASSERT_FALSE(run_until("out", 3));
  options_.after_step = nullptr;
  EXPECT_THAT(refusal<UsageError>("out"), HasSubstr("holds an unfinished run; continue it with --resume"));
  options_.resume = true;

  const CollectOptions good = options_;
  options_.tokens = 150;
  EXPECT_THAT(refusal<UsageError>("out"), HasSubstr("has --tokens 200, this one 150"));
  options_ = good;
  options_.seq_len = 20;
  EXPECT_THAT(refusal<UsageError>("out"), HasSubstr("has --seq-len 48, this one 20"));
  options_ = good;
  options_.context = 48;
  EXPECT_THAT(refusal<UsageError>("out"), HasSubstr("has --context 0, this one 48"));
  options_ = good;
  options_.seed = 9;
  EXPECT_THAT(refusal<UsageError>("out"), HasSubstr("has --seed 0, this one 9"));
  options_ = good;
  options_.rows = 10;
  EXPECT_THAT(refusal<UsageError>("out"), HasSubstr("has --rows 24, this one 10"));
  options_ = good;
  options_.dtype = at::kBFloat16;
  EXPECT_THAT(refusal<UsageError>("out"), HasSubstr("has --dtype float32, this one bfloat16"));
  options_ = good;
  options_.tool_version = "other";
  EXPECT_THAT(refusal<UsageError>("out"), HasSubstr("was started by version test"));
  options_ = good;
  prompts_.sha256 = "other";
  EXPECT_THAT(refusal<InputError>("out"), HasSubstr("has other prompts"));
  prompts_.sha256 = "set-1";
  checkpoint_ = Checkpoint::open(locate_model(OSCAR_SOURCE_DIR "/sample_data/tiny-qwen3"));
  EXPECT_THAT(refusal<InputError>("out"), HasSubstr("is of another model"));
  checkpoint_ = Checkpoint::open(locate_model(kModel));
  EXPECT_FALSE(fs::exists(dir_ / "out"));
  run("out");  // the state survived all of that
  EXPECT_TRUE(fs::exists(dir_ / "out"));
}

TEST_F(Collect, DamagedStateIsRefused) {
  options_.work_dir = dir_ / "work";
  options_.checkpoint_seconds = 0;
  ASSERT_FALSE(run_until("out", 8));
  options_.after_step = nullptr;
  options_.resume = true;
  const auto damaged = [&](const std::string& name, const std::function<void(const fs::path&)>& damage) {
    const fs::path path = dir_ / "work" / name;
    const std::string good = read_file(path);
    damage(path);
    EXPECT_NE(refusal<InputError>("out"), "not refused") << name;
    write_file_atomic(path, good);
  };
  for (const char* name : {"run.json", "point.safetensors", "layer-0000.safetensors", "hidden-1.bin"}) {
    damaged(name, [](const fs::path& p) { fs::resize_file(p, fs::file_size(p) / 2); });
  }
  for (const char* name : {"layer-0000.safetensors", "hidden-1.bin"}) {
    damaged(name, [](const fs::path& p) { fs::remove(p); });
  }
  // Blocks that a power failure lost, one bit, and a link: none of them changes the result in silence.
  for (const char* name : {"point.safetensors", "layer-0000.safetensors", "hidden-1.bin"}) {
    const auto with = [&](const std::function<void(std::string&)>& change) {
      damaged(name, [&](const fs::path& p) {
        std::string bytes = read_file(p);
        change(bytes);
        write_file_atomic(p, bytes);
      });
    };
    with([](std::string& bytes) { std::fill(bytes.begin() + std::ssize(bytes) / 2, bytes.end(), '\0'); });
    with([](std::string& bytes) { bytes[bytes.size() / 3] = static_cast<char>(bytes[bytes.size() / 3] ^ 4); });
    const fs::path path = dir_ / "work" / name;
    fs::rename(path, dir_ / "elsewhere");
    fs::create_symlink(dir_ / "elsewhere", path);
    EXPECT_NE(refusal<InputError>("out"), "not refused") << name;
    fs::rename(dir_ / "elsewhere", path);
  }
  damaged("run.json", [](const fs::path& p) { std::ofstream(p) << "{}"; });
  damaged("layer-0000.safetensors", [&](const fs::path& p) {
    fs::copy_file(dir_ / "work" / "point.safetensors", p, fs::copy_options::overwrite_existing);
  });
  run("out");
}

// Every tensor of a point and of a finished layer, wrong in every way: refused in a sentence that names the file and
// the tensor, and never broadcast.
TEST_F(Collect, AlteredSumsAreRefused) {
  options_.work_dir = dir_ / "work";
  options_.checkpoint_seconds = 0;
  ASSERT_FALSE(run_until("out", 8));
  options_.after_step = nullptr;
  options_.resume = true;
  for (const char* file : {"point.safetensors", "layer-0000.safetensors"}) {
    const fs::path path = dir_ / "work" / file;
    const std::string good = read_file(path);
    std::vector<std::string> names;
    const SafetensorsFile opened = SafetensorsFile::open(path);
    for (const TensorView& view : opened.tensors()) names.push_back(view.name);
    ASSERT_GE(names.size(), std::string(file).starts_with("layer") ? 10u : 1u);
    for (const std::string& name : names) {
      const auto altered = [&](const std::string& how, const std::function<void(std::vector<OwnedTensor>&)>& change) {
        rewrite_tensors(path, change);
        const std::string sentence = refusal<InputError>("out");
        EXPECT_THAT(sentence, HasSubstr(file)) << name << ": " << how;
        EXPECT_THAT(sentence, HasSubstr("delete it to start anew")) << name << ": " << how;
      };
      for (const Alteration& a : alterations()) {
        altered(a.name, [&](std::vector<OwnedTensor>& all) {
          for (OwnedTensor& t : all) {
            if (t.name == name) a.apply(t);
          }
        });
        write_file_atomic(path, good);
      }
      altered("missing", [&](std::vector<OwnedTensor>& all) {
        std::erase_if(all, [&](const OwnedTensor& t) { return t.name == name; });
      });
      write_file_atomic(path, good);
    }
  }
  run("out");
}

TEST_F(Collect, OneRunInADirectoryAtATime) {
  options_.work_dir = dir_ / "work";
  make_directory(options_.work_dir);
  const FileLock other(options_.work_dir / "lock");
  EXPECT_THAT(refusal<EnvironmentError>("out"), HasSubstr("another run uses this directory"));
}

TEST_F(Collect, FilesOfOthersInTheDirectoryStay) {
  options_.work_dir = dir_ / "work";
  make_directory(options_.work_dir);
  std::ofstream(options_.work_dir / "notes.txt") << "mine";
  run("out");
  EXPECT_EQ(bytes("work/notes.txt"), "mine");
  EXPECT_EQ(std::distance(fs::directory_iterator(options_.work_dir), fs::directory_iterator()), 1);
}

TEST_F(Collect, OutputsAreProtected) {
  std::ofstream(dir_ / "out") << "precious";
  EXPECT_THAT(refusal<UsageError>("out"), HasSubstr("already exists"));
  EXPECT_EQ(bytes("out"), "precious");
  options_.overwrite = true;
  run("out");
  EXPECT_NO_THROW(load_statistics(dir_ / "out"));
  EXPECT_THAT(refusal<EnvironmentError>("out/below/a/file"), HasSubstr("cannot be"));
  EXPECT_THAT(refusal<UsageError>(""), HasSubstr("no name for a file"));
  run("new/folder/out");  // parents are made
  EXPECT_NO_THROW(load_statistics(dir_ / "new/folder/out"));
}

TEST_F(Collect, PartsMergeIntoTheWhole) {
  // Prompts as long as a step, so that the same tokens meet in the same GEMM: then only FP64 sums differ.
  options_.seq_len = 32;
  options_.tokens = 1000;
  const PromptSet all = random_prompts({32, 32, 32, 32, 32, 32}, 5);
  PromptSet first = all, second = all;
  first.prompts.resize(2);
  second.prompts.erase(second.prompts.begin(), second.prompts.begin() + 2);
  first.sha256 = "first";
  second.sha256 = "second";
  run("all", all);
  run("first", first);
  run("second", second);
  const Statistics whole = load_statistics(dir_ / "all");
  const Statistics merged = merge_statistics({load_statistics(dir_ / "first"), load_statistics(dir_ / "second")});
  EXPECT_EQ(merged.tokens, whole.tokens);
  for (std::size_t i = 0; i < whole.layers.size(); ++i) {
    for (const MomentField& f : kMomentFields) {
      const at::Tensor &a = merged.layers[i].*f.tensor, &b = whole.layers[i].*f.tensor;
      const double error = ((a - b).norm() / b.norm()).item<double>();
      // The weights of the published proxy are normalized within each part.
      EXPECT_LT(error, f.tensor == &LayerMoments::energy_gram ? 0.3 : 1e-13) << f.name;
    }
    EXPECT_NEAR(merged.layers[i].residual_energy[0].item<double>(), whole.layers[i].residual_energy[0].item<double>(),
                1e-12 * whole.layers[i].residual_energy[0].item<double>());
  }
  EXPECT_EQ(merged.layers[0].row_priority.size(), 24u);
}

TEST_F(Collect, EstimateFitsTheRun) {
  auto [plan, estimate] = run_and_estimate();
  EXPECT_GT(estimate.disk_bytes, 200u * (2 * 192 + 2 * 2 * 128) * 4 + estimate.output_bytes);
  EXPECT_LT(estimate.weight_bytes * 3, decoded_bytes(checkpoint_, 4));  // one layer's
  EXPECT_NO_THROW(require_disk_space(options_, estimate));
  estimate.disk_bytes = std::uint64_t{1} << 60;
  EXPECT_THROW(require_disk_space(options_, estimate), EnvironmentError);
}

// A copy of the sample model whose tensor `name` was changed.
fs::path changed_model(const fs::path& folder, const std::string& name, const std::function<void(std::byte*)>& change) {
  fs::copy(kModel, folder, fs::copy_options::recursive);
  const SafetensorsFile file = SafetensorsFile::open(fs::path(kModel) / "model.safetensors");
  std::vector<TensorView> tensors = file.tensors();
  std::vector<std::byte> data;
  for (TensorView& view : tensors) {
    if (view.name != name) continue;
    data.assign(view.data.begin(), view.data.end());
    change(data.data());
    view.data = data;
  }
  write_safetensors(folder / "model.safetensors", tensors, file.metadata());
  return folder;
}

TEST_F(Collect, NaNIsANumericalErrorWithLayerAndPrompt) {
  // Token 77's embedding becomes NaN: only the prompt that holds it is at fault.
  for (Prompt& p : prompts_.prompts) {
    for (auto& id : p.ids) id = id == 77 ? 78 : id;
  }
  prompts_.prompts[2].ids[4] = 77;
  checkpoint_ =
      Checkpoint::open(locate_model(changed_model(dir_ / "embedding", "model.embed_tokens.weight", [](std::byte* data) {
                                      const std::uint16_t nan = 0x7fc0;  // BF16
                                      std::memcpy(data + 77 * 192 * 2, &nan, 2);
                                    }).string()));
  EXPECT_THAT(refusal<NumericalError>("out"), HasSubstr("the embedding: the hidden state of p.jsonl:3, token 4"));

  checkpoint_ = Checkpoint::open(
      locate_model(changed_model(dir_ / "weight", "model.layers.2.self_attn.v_proj.weight", [](std::byte* data) {
                     const std::uint16_t infinity = 0x7f80;
                     std::memcpy(data, &infinity, 2);
                   }).string()));
  EXPECT_THAT(refusal<NumericalError>("out"), HasSubstr("layer 2: the value of p.jsonl:1, token 0"));
  EXPECT_FALSE(fs::exists(dir_ / "out"));
  EXPECT_FALSE(fs::exists(dir_ / "out.work"));
}

}  // namespace
}  // namespace oscar
