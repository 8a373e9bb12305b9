// Engines that the Python package is a plugin of, and what they do not serve. oscar-export and `oscar-verify --as` use
// the tables. tests/export/engine_limits_test.cpp writes limits.py in python/oscar_kv/format, engines/vllm and
// engines/sglang, and a table of docs/vllm.md, from them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/model_config.h"
#include "layout/kernel_limits.h"

namespace oscar {

// A kind of layer without a 2-bit cache in an engine.
struct LayerLimit {
  const char* name;   // in the Python table: an argument of the engine's attention layer, or a fact of the model
  const char* words;  // "a sliding window": the property of such layers
  bool argument;  // the engine passes it to each layer's backend; otherwise the adapter reads the model's configuration
  bool in_bf16;   // the engine's own backends serve such layers in BF16 beside ours; otherwise the model is refused
  // Whether a layer of the model has the property. Null: no supported family has it.
  bool (*in_layer)(const ModelConfig& model, std::int64_t layer);
};

// One file for each engine: engine_vllm.cpp, engine_sglang.cpp.
struct PluginEngine {
  const char* name;
  const char* release;   // the newest release that python/oscar_kv/engines is written for
  const char* releases;  // what the plugin serves: "0.32.x and 0.33.x"
  const char* gpus;      // where it was run: those of tests/bench/results
  std::vector<LayerLimit> limits;
  const char* command;     // after the environment; the model follows
  const char* options;     // of every start
  const char* length;      // option for the longest context
  const char* ranks;       // option for tensor parallelism
  const char* no_sharing;  // option without which requests share prefixes, as is the engine's default
  const char* sharing;     // name of that
  const char* notes;       // sentences on what is refused
  bool latents = false;    // serves latent attention (MLA)
};

const PluginEngine& vllm_engine();
const PluginEngine& sglang_engine();

// What keeps a layer in BF16 in the engine, such as "a sliding window"; empty: it can have a 2-bit cache.
std::optional<std::string> bf16_reason(const PluginEngine& engine, const ModelConfig& model, std::int64_t layer);

// One sentence if a layer, the head size or the group of the model is not supported, or if all layers would stay in
// BF16. Empty: the model can be served.
std::optional<std::string> unsupported_model(const PluginEngine& engine, const ModelConfig& model);

// "head_dim 96; the kernels that vLLM needs have 64, 128, 256 and 512": the reason, or empty.
std::optional<std::string> head_limit(const PluginEngine& engine, std::int64_t head_dim);
std::optional<std::string> group_limit(std::int64_t query_heads, std::int64_t kv_heads, std::int64_t head_dim);

// Properties of layers, for the tables.
bool has_linear_attention(const ModelConfig& model, std::int64_t layer);
bool has_sliding_window(const ModelConfig& model, std::int64_t layer);
bool has_chunks(const ModelConfig& model, std::int64_t layer);
bool has_soft_cap(const ModelConfig& model, std::int64_t layer);
bool has_sink_logits(const ModelConfig& model, std::int64_t layer);

}  // namespace oscar
