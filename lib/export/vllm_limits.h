// Layers that have no 2-bit cache in vLLM and SGLang, a table for each. oscar-export and `oscar-verify --as` use them.
// tests/export/vllm_limits_test.cpp writes limits.py in python/oscar_kv/format, engines/vllm and engines/sglang, and a
// table of docs/serve.md, from them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/model_config.h"

namespace oscar {

inline constexpr const char* kVllmRelease =
    "0.33";  // the release that python/oscar_kv/engines/vllm/plugin.py is written for
inline constexpr const char* kSglangRelease = "0.5.23";  // of python/oscar_kv/engines/sglang/hooks.py
// Limits of the decode kernel (kernels/decode/decode_attention.h).
inline constexpr std::array<std::int64_t, 3> kVllmHeadSizes = {64, 128, 256};
inline constexpr std::int64_t kVllmMostGroup = 16;     // query heads per KV head
inline constexpr std::int64_t kVllmMostWindow = 2048;  // tokens of sink and ring, in complete pages

// A kind of layer without a 2-bit cache in an engine.
struct VllmRefusal {
  const char* name;   // in the Python table: an argument of the engine's attention layer, or a fact of the model
  const char* words;  // "a sliding window": the property of such layers
  bool argument;  // the engine passes it to each layer's backend; otherwise the adapter reads the model's configuration
  bool in_bf16;   // the engine's own backends serve such layers in BF16 beside ours; otherwise the model is refused
  // Whether a layer of the model has the property. Null: no supported family has it.
  bool (*in_layer)(const ModelConfig& model, std::int64_t layer);
};

const std::vector<VllmRefusal>& vllm_refusals();
// Of SGLang; `name` and `argument` are of its RadixAttention.
const std::vector<VllmRefusal>& sglang_refusals();

// What keeps a layer in BF16 in the engine, such as "a sliding window"; empty: it can have a 2-bit cache.
std::optional<std::string> vllm_bf16_reason(const ModelConfig& model, std::int64_t layer);
std::optional<std::string> sglang_bf16_reason(const ModelConfig& model, std::int64_t layer);

// An engine that the Python package is a plugin of.
struct PluginEngine {
  const char* name;
  const char* release;
  const std::vector<VllmRefusal>& (*refusals)();
  std::optional<std::string> (*bf16_reason)(const ModelConfig& model, std::int64_t layer);
};
inline constexpr PluginEngine kVllmEngine = {"vLLM", kVllmRelease, vllm_refusals, vllm_bf16_reason};
inline constexpr PluginEngine kSglangEngine = {"SGLang", kSglangRelease, sglang_refusals, sglang_bf16_reason};

// One sentence if a layer, the head size or the group of the model is not supported, or if all layers would stay in
// BF16. Empty: the model can be served.
std::optional<std::string> vllm_unsupported_model(const ModelConfig& model, const PluginEngine& engine = kVllmEngine);

// "head_dim 96; the kernels that vLLM needs have 64, 128 and 256": the reason, or empty.
std::optional<std::string> vllm_head_refusal(std::int64_t head_dim, const PluginEngine& engine = kVllmEngine);
std::optional<std::string> vllm_group_refusal(std::int64_t query_heads, std::int64_t kv_heads);

}  // namespace oscar
