// The table of what vLLM and SGLang are not served: sentences for models, and the four files that are written from it.
// OSCAR_WRITE_TABLES=1 writes them anew.
#include "export/engine_limits.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>
#include <tuple>
#include <utility>
#include <vector>

#include "base/files.h"
#include "bundle/manifest.h"
#include "kernels/decode/tile_phases.h"
#include "support/paths.h"

namespace oscar {
namespace {

ModelConfig model_of(std::int64_t layers, std::int64_t query_heads, std::int64_t kv_heads, std::int64_t head_dim) {
  ModelConfig model;
  model.layers = layers, model.query_heads = query_heads, model.kv_heads = kv_heads, model.head_dim = head_dim;
  return model;
}

TEST(EngineLimits, NamesWhatAModelHas) {
  EXPECT_FALSE(unsupported_model(vllm_engine(), model_of(2, 32, 8, 128)));
  EXPECT_FALSE(unsupported_model(vllm_engine(), model_of(2, 16, 1, 256)));
  ModelConfig gemma = model_of(3, 4, 1, 256);
  gemma.sliding_window = {512, 512, 0};
  EXPECT_FALSE(unsupported_model(vllm_engine(), gemma));
  EXPECT_EQ(*bf16_reason(vllm_engine(), gemma, 1), "a sliding window");
  EXPECT_FALSE(bf16_reason(vllm_engine(), gemma, 2));
  gemma.sliding_window[2] = 512;
  EXPECT_EQ(*unsupported_model(vllm_engine(), gemma),
            "no layer of the model would have a 2-bit cache in vLLM 0.33: layer 0 has a sliding window, which stays in "
            "BF16 there; format transformers serves it");
  ModelConfig capped = model_of(2, 8, 4, 256);
  capped.logit_soft_cap = 50.0;
  EXPECT_NE(unsupported_model(vllm_engine(), capped)->find("layer 0 has a soft cap on logits"), std::string::npos);
  ModelConfig sinks = model_of(2, 8, 4, 64);
  sinks.sink_logits = true, sinks.sliding_window = {128, 0};
  EXPECT_FALSE(unsupported_model(vllm_engine(), sinks));
  ModelConfig chunks = model_of(2, 8, 4, 64);
  chunks.chunk = {0, 8192};
  EXPECT_NE(unsupported_model(vllm_engine(), chunks)->find("1 of the model's 2 layers have attention in chunks"),
            std::string::npos);
  ModelConfig linear = model_of(2, 8, 4, 64);
  linear.linear.layers = {true, false};
  EXPECT_FALSE(unsupported_model(vllm_engine(), linear));
  EXPECT_EQ(*bf16_reason(vllm_engine(), linear, 0), "linear attention");
  ModelConfig shared = model_of(2, 8, 4, 64);
  shared.shared.source = {0, 0};
  EXPECT_FALSE(unsupported_model(vllm_engine(), shared));
  EXPECT_FALSE(unsupported_model(sglang_engine(), shared));
  EXPECT_FALSE(unsupported_model(vllm_engine(), model_of(2, 16, 2, 512)));
  EXPECT_FALSE(unsupported_model(sglang_engine(), model_of(2, 16, 2, 512)));
  EXPECT_EQ(*unsupported_model(vllm_engine(), model_of(2, 18, 2, 512)),
            "the model has 9 query heads on a KV head, and the decode kernel at most 8; format transformers serves it");
  EXPECT_EQ(*unsupported_model(vllm_engine(), model_of(2, 8, 4, 96)),
            "the model has head_dim 96; the kernels that vLLM needs have 64, 128, 256 and 512. Format transformers "
            "serves it");
  EXPECT_EQ(
      *unsupported_model(sglang_engine(), gemma),
      "no layer of the model would have a 2-bit cache in SGLang 0.5.23: layer 0 has a sliding window, which stays "
      "in BF16 there; format transformers serves it");
  gemma.sliding_window[2] = 0;
  EXPECT_FALSE(unsupported_model(sglang_engine(), gemma));
  EXPECT_EQ(*bf16_reason(sglang_engine(), gemma, 1), "a sliding window");
  EXPECT_FALSE(unsupported_model(sglang_engine(), linear));
  EXPECT_EQ(*bf16_reason(sglang_engine(), linear, 0), "linear attention");
  EXPECT_NE(unsupported_model(sglang_engine(), chunks)->find("the adapter for SGLang 0.5.23 does not serve"),
            std::string::npos);
  EXPECT_EQ(
      *unsupported_model(vllm_engine(), model_of(2, 34, 2, 64)),
      "the model has 17 query heads on a KV head, and the decode kernel at most 16; format transformers serves it");
}

// Head, whether arguments of a layer, whether such layers stay in BF16.
using Tables = std::vector<std::tuple<const char*, bool, bool>>;

void write_tables(std::ostringstream& out, const Tables& tables, const std::vector<LayerLimit>& kinds) {
  for (const auto& [head, argument, in_bf16] : tables) {
    std::string rows;
    for (const LayerLimit& kind : kinds) {
      if (kind.argument != argument || kind.in_bf16 != in_bf16) continue;
      rows += std::string("    \"") + kind.name + "\": \"" + kind.words + "\",\n";
    }
    if (!rows.empty()) out << head << rows << "}\n";
  }
}

// The head of a Python file; what: its first sentence.
std::string python_head(const std::string& what) {
  return "\"\"\"" + what +
         " Written from lib/export by the test EngineLimits:\n"
         "\n    OSCAR_WRITE_TABLES=1 build/tests/export_test --gtest_filter='EngineLimits.*'\"\"\"\n";
}

std::string kernels_table() {
  std::ostringstream out;
  out << python_head("What the kernels serve, and the most that a manifest may name.") << "HEAD_SIZES = {";
  for (const HeadLimit& head : kEngineHeads) {
    out << (head.head_dim == kEngineHeads.front().head_dim ? "" : ", ") << head.head_dim << ": " << head.most_group;
  }
  out << "}  # the most query heads on a KV head\n"
      << "MOST_HEAD_SCALE, MOST_WINDOW = " << kMostHeadScaleHead << ", " << kEngineMostWindow
      << "  # head size in layout HEAD_SCALE; tokens\n"
      << "RING_SLACK, MOST_FREQUENCY = " << kEngineRingSlack << ", " << kernels::kMostFrequency
      << "  # slots that the last tile may read beyond the ring; radians a token\n"
      << "HEAD_SCALE, ROTATED_MEAN = \"" << to_string(kHeadScaleLayout) << "\", \"" << to_string(kRotatedMeanLayout)
      << "\"  # layouts: one FP16 scale and zero a head; keys centered before RoPE\n"
      << "MOST_LAYERS, MOST_HEADS, LARGEST_HEAD_DIM = " << kManifestLayers << ", " << kManifestHeads << ", "
      << kManifestHeadDim << "\n";
  return out.str();
}

// bf16: of the table of layers that stay in BF16; layer: "is given" or "has".
std::string engine_table(const PluginEngine& engine, const std::string& bf16, const std::string& layer) {
  std::ostringstream out;
  out << python_head(std::string("What the adapter for ") + engine.name + " does not serve.") << "RELEASE = \""
      << engine.release << "\"\n";
  const std::string heads[] = {"# " + bf16 + " A layer that " + layer + " one stays in BF16.\nIN_BF16 = {\n",
                               "# A layer that " + layer + " one of these is refused.\nLAYERS = {\n",
                               "# Facts of the model whose layers are refused.\nMODEL = {\n"};
  write_tables(out, {{heads[0].c_str(), true, true}, {heads[1].c_str(), true, false}, {heads[2].c_str(), false, false}},
               engine.limits);
  return out.str();
}

std::string docs_row() {
  std::string text = "| head sizes but " + engine_head_sizes(" and ") + ", more than " +
                     std::to_string(kEngineHeads.front().most_group) + " query heads on a KV head (" +
                     std::to_string(kEngineHeads.back().most_group) + " with " +
                     std::to_string(kEngineHeads.back().head_dim) +
                     " channels, which also need layout `blocks`), BF16 windows above " +
                     "2,048 tokens | the kernels have none |\n| layers with ";
  std::string bf16, refused;
  for (const LayerLimit& kind : vllm_engine().limits) {
    std::string& list = kind.in_bf16 ? bf16 : refused;
    list += (list.empty() ? "" : ", ") + std::string(kind.words);
  }
  return text + refused + " | the adapter does not serve them |\n| models whose layers all have " + bf16 +
         " | such layers stay in BF16 |\n";
}

TEST(EngineLimits, IsWhatPythonAndTheDocsHave) {
  const fs::path root = OSCAR_SOURCE_DIR, package = root / "python/oscar_kv", page = root / "docs/vllm.md";
  const std::pair<fs::path, std::string> tables[] = {
      {package / "format/limits.py", kernels_table()},
      {package / "engines/vllm/limits.py",
       engine_table(vllm_engine(), "Arguments of vLLM's AttentionImpl.", "is given")},
      {package / "engines/sglang/limits.py",
       engine_table(sglang_engine(), "Names in SGLang's RadixAttention and its calls.", "has")}};
  const std::string rows = docs_row();
  ASSERT_EQ(kEngineMostWindow, 2048);  // as docs_row() writes it
  std::string text = read_file(page);
  const std::size_t head = text.find("| refused | reason |\n|---|---|\n");
  ASSERT_NE(head, std::string::npos);
  const std::size_t from = head + std::string("| refused | reason |\n|---|---|\n").size();
  const std::size_t to = text.find('\n', text.find('\n', text.find('\n', from) + 1) + 1) + 1;  // three rows
  if (std::getenv("OSCAR_WRITE_TABLES") != nullptr) {
    for (const auto& [path, table] : tables) write_file_atomic(path, table);
    write_file_atomic(page, text.replace(from, to - from, rows));
    return;
  }
  for (const auto& [path, table] : tables) EXPECT_EQ(read_file(path), table);
  EXPECT_EQ(text.substr(from, to - from), rows);
}

}  // namespace
}  // namespace oscar
