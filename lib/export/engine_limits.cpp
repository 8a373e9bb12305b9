#include "export/engine_limits.h"

namespace oscar {
namespace {

constexpr const char* kWayOut = "; format transformers serves it";

}  // namespace

bool has_linear_attention(const ModelConfig& m, std::int64_t layer) { return m.is_linear(layer); }
bool has_sliding_window(const ModelConfig& m, std::int64_t layer) {
  return !m.sliding_window.empty() && m.sliding_window.at(static_cast<std::size_t>(layer)) > 0;
}
bool has_chunks(const ModelConfig& m, std::int64_t layer) {
  return !m.chunk.empty() && m.chunk.at(static_cast<std::size_t>(layer)) > 0;
}
bool has_soft_cap(const ModelConfig& m, std::int64_t) { return m.logit_soft_cap > 0.0; }
bool has_sink_logits(const ModelConfig& m, std::int64_t) { return m.sink_logits; }

std::optional<std::string> bf16_reason(const PluginEngine& engine, const ModelConfig& model, std::int64_t layer) {
  for (const LayerLimit& limit : engine.limits) {
    if (limit.in_bf16 && limit.in_layer != nullptr && limit.in_layer(model, layer)) return limit.words;
  }
  return std::nullopt;
}

std::optional<std::string> head_limit(const PluginEngine& engine, std::int64_t head_dim) {
  if (engine_most_group(head_dim) > 0) return std::nullopt;
  return "head_dim " + std::to_string(head_dim) + "; the kernels that " + engine.name + " needs have " +
         engine_head_sizes(" and ") + ". Format transformers serves it";
}

std::optional<std::string> group_limit(std::int64_t query_heads, std::int64_t kv_heads, std::int64_t head_dim) {
  const std::int64_t most = engine_most_group(head_dim);
  if (kv_heads <= 0 || query_heads / kv_heads <= most) return std::nullopt;
  return std::to_string(query_heads / kv_heads) + " query heads on a KV head, and the decode kernel at most " +
         std::to_string(most) + kWayOut;
}

std::optional<std::string> unsupported_model(const PluginEngine& engine, const ModelConfig& model) {
  for (const LayerLimit& limit : engine.limits) {
    if (limit.in_bf16) continue;
    std::int64_t first = -1, count = 0;
    for (std::int64_t layer = 0; limit.in_layer != nullptr && layer < model.layers; ++layer) {
      if (!limit.in_layer(model, layer)) continue;
      if (count++ == 0) first = layer;
    }
    if (count == 0) continue;
    return std::to_string(count) + " of the model's " + std::to_string(model.layers) + " layers have " + limit.words +
           " (layer " + std::to_string(first) + " is the first), which the adapter for " + engine.name + " " +
           engine.release + " does not serve" + kWayOut;
  }
  std::int64_t in_bf16 = 0;
  while (in_bf16 < model.layers && bf16_reason(engine, model, in_bf16)) ++in_bf16;
  if (model.layers > 0 && in_bf16 == model.layers) {
    return std::string("no layer of the model would have a 2-bit cache in ") + engine.name + " " + engine.release +
           ": layer 0 has " + *bf16_reason(engine, model, 0) + ", which stays in BF16 there" + kWayOut;
  }
  if (model.is_latent()) {
    return engine.latents ? std::nullopt
                          : std::optional(std::string("the model has latent attention (MLA), which the adapter for ") +
                                          engine.name + " " + engine.release + " does not serve");
  }
  if (const auto reason = head_limit(engine, model.head_dim)) return "the model has " + *reason;
  if (const auto reason = group_limit(model.query_heads, model.kv_heads, model.head_dim))
    return "the model has " + *reason;
  return std::nullopt;
}

}  // namespace oscar
