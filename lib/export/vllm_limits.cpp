#include "export/vllm_limits.h"

#include <algorithm>

namespace oscar {
namespace {

constexpr const char* kWayOut = "; format transformers serves it";

bool is_linear(const ModelConfig& m, std::int64_t layer) { return m.is_linear(layer); }
bool has_window(const ModelConfig& m, std::int64_t layer) {
  return !m.sliding_window.empty() && m.sliding_window.at(static_cast<std::size_t>(layer)) > 0;
}
bool has_chunks(const ModelConfig& m, std::int64_t layer) {
  return !m.chunk.empty() && m.chunk.at(static_cast<std::size_t>(layer)) > 0;
}
bool has_soft_cap(const ModelConfig& m, std::int64_t) { return m.logit_soft_cap > 0.0; }
bool has_sinks(const ModelConfig& m, std::int64_t) { return m.sink_logits; }
bool reads_another(const ModelConfig& m, std::int64_t layer) { return m.reads_another(layer); }

std::optional<std::string> bf16_reason(const std::vector<VllmRefusal>& kinds, const ModelConfig& model,
                                       std::int64_t layer) {
  for (const VllmRefusal& kind : kinds) {
    if (kind.in_bf16 && kind.in_layer != nullptr && kind.in_layer(model, layer)) return kind.words;
  }
  return std::nullopt;
}

}  // namespace

const std::vector<VllmRefusal>& vllm_refusals() {
  static const std::vector<VllmRefusal> table = {
      {"sliding_window", "a sliding window", true, true, has_window},
      {"logits_soft_cap", "a soft cap on logits", true, true, has_soft_cap},
      {"linear_attention", "linear attention", false, true, is_linear},
      {"alibi_slopes", "ALiBi", true, true, nullptr},
      {"attention_chunk_size", "attention in chunks of the sequence", false, false, has_chunks},
      {"kv_sharing_target_layer_name", "the cache of another layer", true, false, reads_another},
  };
  return table;
}

const std::vector<VllmRefusal>& sglang_refusals() {
  static const std::vector<VllmRefusal> table = {
      {"sliding_window_size", "a sliding window", true, true, has_window},
      {"use_irope", "attention in chunks of the sequence", true, false, has_chunks},
      {"logit_cap", "a soft cap on logits", true, true, has_soft_cap},
      {"sinks", "learned sink logits", true, false, has_sinks},
      {"shared_layer", "the cache of another layer", true, false, reads_another},
      {"linear_attention", "linear attention", false, false, is_linear},
      {"pos_encoding_mode", "ALiBi", true, false, nullptr},
  };
  return table;
}

std::optional<std::string> vllm_head_refusal(std::int64_t head_dim, const PluginEngine& engine) {
  if (std::count(kVllmHeadSizes.begin(), kVllmHeadSizes.end(), head_dim) > 0) return std::nullopt;
  std::string sizes;
  for (std::size_t i = 0; i < kVllmHeadSizes.size(); ++i) {
    sizes += (i == 0 ? "" : i + 1 < kVllmHeadSizes.size() ? ", " : " and ") + std::to_string(kVllmHeadSizes[i]);
  }
  return "head_dim " + std::to_string(head_dim) + "; the kernels that " + engine.name + " needs have " + sizes +
         ". Format transformers serves it";
}

std::optional<std::string> vllm_group_refusal(std::int64_t query_heads, std::int64_t kv_heads) {
  if (kv_heads <= 0 || query_heads / kv_heads <= kVllmMostGroup) return std::nullopt;
  return std::to_string(query_heads / kv_heads) + " query heads on a KV head, and the decode kernel at most " +
         std::to_string(kVllmMostGroup) + kWayOut;
}

std::optional<std::string> vllm_unsupported_model(const ModelConfig& model, const PluginEngine& engine) {
  for (const VllmRefusal& refusal : engine.refusals()) {
    if (refusal.in_bf16) continue;
    std::int64_t first = -1, count = 0;
    for (std::int64_t layer = 0; refusal.in_layer != nullptr && layer < model.layers; ++layer) {
      if (!refusal.in_layer(model, layer)) continue;
      if (count++ == 0) first = layer;
    }
    if (count == 0) continue;
    return std::to_string(count) + " of the model's " + std::to_string(model.layers) + " layers have " + refusal.words +
           " (layer " + std::to_string(first) + " is the first), which the adapter for " + engine.name + " " +
           engine.release + " does not serve" + kWayOut;
  }
  std::int64_t in_bf16 = 0;
  while (in_bf16 < model.layers && engine.bf16_reason(model, in_bf16)) ++in_bf16;
  if (model.layers > 0 && in_bf16 == model.layers) {
    return std::string("no layer of the model would have a 2-bit cache in ") + engine.name + " " + engine.release +
           ": layer 0 has " + *engine.bf16_reason(model, 0) + ", which stays in BF16 there" + kWayOut;
  }
  if (const auto reason = vllm_head_refusal(model.head_dim, engine)) return "the model has " + *reason;
  if (const auto reason = vllm_group_refusal(model.query_heads, model.kv_heads)) return "the model has " + *reason;
  return std::nullopt;
}

std::optional<std::string> vllm_bf16_reason(const ModelConfig& model, std::int64_t layer) {
  return bf16_reason(vllm_refusals(), model, layer);
}

std::optional<std::string> sglang_bf16_reason(const ModelConfig& model, std::int64_t layer) {
  return bf16_reason(sglang_refusals(), model, layer);
}

}  // namespace oscar
