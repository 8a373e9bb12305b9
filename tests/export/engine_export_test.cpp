// The directories for vLLM and SGLang: the bundle byte for byte, and a card whose command names it and the model.
#include "export/writers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/files.h"
#include "base/hash.h"
#include "base/json.h"
#include "bundle/bundle_fixture.h"
#include "export/engine_limits.h"
#include "support/paths.h"
#include "support/temp_directory.h"

namespace oscar {
namespace {

// The card of a bundle of two layers.
std::string card_of(const Bundle& bundle, const std::string& format) {
  const TempDirectory work;
  save_bundle(bundle, work.path() / "bundle", false);
  ExportOptions options;
  options.bundle = work.path() / "bundle", options.model_path = "org/a model", options.tool_version = "1";
  const ServedForm form = served_form(bundle, format);
  EXPECT_TRUE(form.changes.empty());
  const std::vector<std::string> names = write_engine(written_format(format), form, work.path() / "out", options);
  for (const std::string name : {"README.md", "SHA256SUMS", "oscar_bundle/oscar_bundle.json"}) {
    EXPECT_NE(std::find(names.begin(), names.end(), name), names.end()) << name;
  }
  EXPECT_EQ(sha256_file(work.path() / "out/oscar_bundle/oscar_bundle.json"),
            sha256_file(work.path() / "bundle/oscar_bundle.json"));
  EXPECT_NO_THROW(load_bundle(work.path() / "out/oscar_bundle"));
  EXPECT_THROW(write_engine(written_format(format), form, work.path() / "out", options), UsageError);
  return read_file(work.path() / "out/README.md");
}

// The commands of a card, lines joined.
std::vector<std::string> commands_of(const std::string& card) {
  std::vector<std::string> commands;
  const std::string open = "```console\n";
  for (std::size_t at = card.find(open); at != std::string::npos; at = card.find(open, at + 1)) {
    const std::size_t from = at + open.size();
    std::string command = card.substr(from, card.find("\n```", from) - from);
    for (std::size_t cut; (cut = command.find(" \\\n  ")) != std::string::npos;) command.replace(cut, 5, " ");
    commands.push_back(command);
  }
  return commands;
}

TEST(EngineExport, CardsHaveBothCommands) {
  const std::string start = "OSCAR_KV_BUNDLE=\"$PWD\"/oscar_bundle ";
  const std::string vllm = "vllm serve 'org/a model' --dtype bfloat16 --kv-cache-dtype oscar --attention-backend OSCAR";
  const std::string sglang =
      "sglang serve 'org/a model' --dtype bfloat16 --attention-backend oscar --page-size 64 "
      "--max-running-requests 32 --disable-prefill-cuda-graph";
  Bundle bundle = small_bundle(2, 64);
  ASSERT_EQ(bundle.layers.front().kv_heads, 2);
  bundle.provenance["longest_distance"] = 4095;
  bundle.windows.sink = 64;
  const std::string card = card_of(bundle, "vllm"), other = card_of(bundle, "sglang");
  EXPECT_EQ(commands_of(card),
            (std::vector<std::string>{start + vllm + " --max-model-len 4096",
                                      start + vllm + " --max-model-len 4096 --no-enable-prefix-caching"}));
  EXPECT_EQ(commands_of(other),
            (std::vector<std::string>{start + sglang + " --context-length 4096",
                                      start + sglang + " --context-length 4096 --disable-radix-cache"}));
  EXPECT_NE(card.find("`--tensor-parallel-size N`, where N divides the 2 KV heads"), std::string::npos) << card;
  EXPECT_NE(other.find("`--tp-size N`"), std::string::npos) << other;
  for (const char* word : {"vLLM 0.32.x and 0.33.x", "run in vLLM on NVIDIA H100 and H200", "oscar-verify --as vllm"}) {
    EXPECT_NE(card.find(word), std::string::npos) << word << "\n" << card;
  }
  // Requests share only whole pages, and without a recorded calibration no length is named.
  bundle.windows.sink = 16;
  bundle.provenance.erase("longest_distance");
  EXPECT_EQ(commands_of(card_of(bundle, "vllm")),
            (std::vector<std::string>{start + vllm + " --no-enable-prefix-caching"}));
  EXPECT_NE(card_of(bundle, "sglang").find("This bundle has a sink of 16 tokens"), std::string::npos);
}

TEST(EngineExport, PlansAndRefusalsNameTheEngine) {
  EXPECT_EQ(engine_plan(served_form(small_bundle(2, 64), "vllm"), {}),
            "a bundle of 2 layers with the command for vLLM 0.33");
  EXPECT_EQ(engine_plan(served_form(small_bundle(2, 64), "sglang"), {}),
            "a bundle of 2 layers with the command for SGLang 0.5.23");
  const auto reason = engine_unsupported(written_format("sglang"), small_bundle(2, 96));
  ASSERT_TRUE(reason);
  EXPECT_NE(reason->find("the kernels that SGLang needs"), std::string::npos) << *reason;
}

// The GPUs that cards name are those of the raw results.
TEST(HubExport, HasNoText) {
  // What is shared has no probe, which is text; an engine's export has it, unless its owner deleted it.
  const TempDirectory work;
  Bundle bundle = small_bundle(2, 64);
  bundle.probe = {{"format", "oscar-probe"}};
  save_bundle(bundle, work.path() / "bundle", false);
  ExportOptions options;
  options.bundle = work.path() / "bundle", options.model_path = "org/model", options.tool_version = "1";
  const auto has_probe = [&](const std::string& format, const std::string& out) {
    const ServedForm form = served_form(load_bundle(options.bundle), format);
    const ExportFormat& row = written_format(format);
    (format == "hub" ? write_hub : write_engine)(row, form, work.path() / out, options);
    const std::string folder = format == "hub" ? "" : "oscar_bundle/";
    EXPECT_NO_THROW(load_bundle(work.path() / out / folder));
    return fs::exists(work.path() / out / (folder + kProbeName));
  };
  EXPECT_TRUE(has_probe("vllm", "first"));
  EXPECT_FALSE(has_probe("hub", "second"));
  fs::remove(options.bundle / kProbeName);
  EXPECT_FALSE(has_probe("vllm", "third"));
}

TEST(HubExport, SaysWhyAnEngineDoesNotServe) {
  const TempDirectory work;
  Bundle bundle = latent_bundle(1, 512, 64);
  bundle.model["query_heads"] = 128, bundle.method = "waterfill", bundle.encoder = "search";
  set_block_widths(bundle.layers[0], {4, 2, 1, 1}, {4, 2, 1, 1});
  save_bundle(bundle, work.path() / "bundle", false);
  ExportOptions options;
  options.bundle = work.path() / "bundle", options.tool_version = "1";
  write_hub(written_format("hub"), served_form(load_bundle(options.bundle), "hub"), work.path() / "out", options);
  const std::string card = read_file(work.path() / "out" / kCardName);
  EXPECT_NE(card.find("| SGLang 0.5.23 | does not serve this bundle: the bundle is for latent attention (MLA), which "
                      "format sglang does not carry; format vllm does |"),
            std::string::npos)
      << card;
  EXPECT_NE(card.find("| vLLM 0.32.x and 0.33.x | NVIDIA H100 and H200 |"), std::string::npos) << card;
}

TEST(EngineExport, NamesTheGpusOfTheResults) {
  for (const PluginEngine& engine : {vllm_engine(), sglang_engine()}) {
    std::string prefix = engine.name;
    std::transform(prefix.begin(), prefix.end(), prefix.begin(), [](unsigned char c) { return std::tolower(c); });
    std::set<std::string> found;
    for (const auto& file : fs::directory_iterator(fs::path(OSCAR_SOURCE_DIR) / "tests/bench/results")) {
      if (file.path().extension() != ".jsonl" || file.path().filename().string().rfind(prefix + "_h", 0) != 0) continue;
      std::istringstream lines(read_file(file.path()));
      for (std::string line; std::getline(lines, line);) {
        const Json run = parse_json(line, file.path().string());
        if (run.contains("gpu")) found.insert(run["gpu"].get<std::string>().substr(0, 11));
      }
    }
    ASSERT_EQ(found, (std::set<std::string>{"NVIDIA H100", "NVIDIA H200"})) << engine.name;
    EXPECT_STREQ(engine.gpus, "NVIDIA H100 and H200");
  }
}

}  // namespace
}  // namespace oscar
