// What the adapter for vLLM does not serve: one table. oscar-export and `oscar-verify --as vllm` refuse by it, and
// python/oscar_kv/vllm_limits.py and a table of docs/serve.md are written from it (tests/export/vllm_limits_test.cpp).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/model_config.h"

namespace oscar {

inline constexpr const char* kVllmRelease = "0.33";  // python/oscar_kv/vllm_plugin.py is written for it
// Of the decode kernel (kernels/decode/decode_attention.h).
inline constexpr std::array<std::int64_t, 3> kVllmHeadSizes = {64, 128, 256};
inline constexpr std::int64_t kVllmMostGroup = 16;     // query heads on a KV head
inline constexpr std::int64_t kVllmMostWindow = 2048;  // tokens of sink and ring, in whole pages

// A kind of layer that is not served.
struct VllmRefusal {
  const char* name;   // in the Python table: an argument of vLLM's AttentionImpl, else a fact of the model
  const char* words;  // "a sliding window": what such layers have
  bool argument;      // vLLM tells each layer's backend; else the adapter asks the model's configuration
  // Whether a layer of the model is such a one. Null: no family here has it.
  bool (*in_layer)(const ModelConfig& model, std::int64_t layer);
};

const std::vector<VllmRefusal>& vllm_refusals();

// One sentence for the first layer, head size or group of the model that is not served; empty: all are.
std::optional<std::string> vllm_unsupported_model(const ModelConfig& model);

// "head_dim 96; the kernels that vLLM needs have 64, 128 and 256": why not, or empty.
std::optional<std::string> vllm_head_refusal(std::int64_t head_dim);
std::optional<std::string> vllm_group_refusal(std::int64_t query_heads, std::int64_t kv_heads);

}  // namespace oscar
