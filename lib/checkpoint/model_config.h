// config.json as typed facts. Accepts transformers v4 (rope_theta, rope_scaling) and v5 (rope_parameters) spelling.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"

namespace oscar {

enum class RopeType { kDefault, kLinear, kLlama3, kYarn };

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;                     // linear, llama3, yarn
  double low_freq_factor = 1.0;            // llama3
  double high_freq_factor = 4.0;           // llama3
  std::int64_t original_max_position = 0;  // llama3, yarn
  double beta_fast = 32.0;                 // yarn
  double beta_slow = 1.0;                  // yarn
  double attention_factor = 1.0;  // yarn: multiplies cos and sin; the parser fills in the default where it is absent
  bool truncate = true;           // yarn: round the correction range to whole dimensions
};

struct ModelConfig {
  std::string architecture;  // "Qwen3ForCausalLM"
  std::string model_type;    // "qwen3"
  std::int64_t layers = 0, hidden = 0, intermediate = 0, vocabulary = 0;
  std::int64_t query_heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t max_position = 0;
  double rms_eps = 1e-6;
  std::string activation = "silu";
  bool tie_embeddings = false;
  bool qkv_bias = false, output_bias = false, mlp_bias = false;
  bool qk_norm = false;  // RMSNorm over each head of q and k, before RoPE
  RopeConfig rope;
  std::vector<std::int64_t> sliding_window;  // [layers]; 0: full attention
  bool logit_soft_cap = false;               // attention caps its logits; no family that is supported does so
  bool sink_logits = false;                  // logits join the denominator of the softmax; none does so
  std::int64_t bos_token = -1;               // -1: none
  std::vector<std::int64_t> eos_tokens;
  std::string torch_dtype;  // as written: "bfloat16"

  std::int64_t group_size() const { return query_heads / kv_heads; }  // query heads of one KV head
};

// Defaults of absent keys are those of transformers 5 for the family. Parses and validates; `where` names the file.
// InputError for a missing key, a contradiction (query heads not a multiple of KV heads), or an architecture that is
// not supported (the message lists those that are).
ModelConfig parse_model_config(const Json& config, const std::string& where);

// "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM"
std::string supported_architectures();

}  // namespace oscar
