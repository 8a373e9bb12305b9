#include "collect/run_record.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "checkpoint/model_name.h"
#include "collect/shard.h"
#include "layout/left_out.h"
#include "model/decoder.h"
#include "model/layer.h"
#include "model/rope.h"
#include "statistics/layer_fields.h"
#include "text/text_hashes.h"

namespace oscar {
namespace {

// A layer without a KV cache that can be quantized, and the reason.
LeftOutLayer without_cache(const ModelConfig& config, std::int64_t layer) {
  if (config.is_linear(layer)) return {layer, "linear attention, no KV cache", {}};
  if (config.reads_another(layer)) return reads_another(layer, config.shared.source[static_cast<std::size_t>(layer)]);
  return {
      layer,
      "a window of " + std::to_string(config.span(layer)) + " tokens in heads of another size, which stay as they are",
      {}};
}

Json options_record(const CollectOptions& options) {
  Json far = "none";
  if (options.far.enabled) far = {{"sink", options.far.sink}, {"recent", options.far.recent}};
  Json record = {{"tokens", options.tokens},
                 {"seq_len", options.seq_len},
                 {"rows", options.rows},
                 {"seed", options.seed},
                 {"far_pairs", std::move(far)},
                 {"dtype", dtype_name(options.dtype)},
                 {"device", options.device.is_cpu() ? "cpu" : "cuda"}};
  if (options.context > 0) record["context"] = options.context;
  return record;
}

}  // namespace

Json run_identity(const std::string& fingerprint, const PromptSet& prompts, const CollectOptions& options) {
  Json record = options_record(options);
  record["text_hashes"] = options.text_hashes;
  record["context"] = options.context;
  record["shard"] = shard_text(options.shard);
  return {{"tool_version", options.tool_version},
          {"model", fingerprint},
          {"prompts", prompts.sha256},
          {"options", std::move(record)},
          {"threads", at::get_num_threads()}};
}

Statistics statistics_header(const Checkpoint& checkpoint, const std::string& fingerprint, const PromptSet& prompts,
                             const TokenPlan& plan, const CollectOptions& options, std::int64_t rows_kept) {
  const ModelConfig& config = checkpoint.config();
  Statistics s{.model_fingerprint = fingerprint,
               .model_name = plain_model_name(checkpoint.location().name),
               .architecture = config.architecture,
               .query_heads = config.query_heads,
               .kv_heads = config.kv_heads,
               .head_dim = config.head_dim,
               .hidden = config.hidden,
               .tokens = plan.tokens};
  const RopeFrequencies frequencies = common_rope(config);
  s.rope_frequency = frequencies.inverse.to(at::kDouble);
  s.rope_scale = frequencies.attention_factor;
  s.rope_reach = rope_reach(config);
  s.attention_scale = attention_scale(config);
  s.max_position = config.max_position;
  s.rope_dim = config.latent.rope_dim;

  Json geometry = Json::array();
  for (std::int64_t i = 0; i < config.layers; ++i) {
    if (!config.holds_kv(i)) {
      s.left_out.push_back(without_cache(config, i));
      continue;
    }
    const std::int64_t window = config.sliding_window.empty() ? 0 : config.sliding_window[i];
    geometry.push_back({{"layer", i},
                        {"query_heads", config.query_heads},
                        {"kv_heads", config.kv_heads},
                        {"head_dim", config.head_dim},
                        {"sliding_window", window}});
    if (!config.chunk.empty()) geometry.back()["chunk"] = config.chunk[static_cast<std::size_t>(i)];
  }
  Json prompt_record = {{"sha256", prompts.sha256},
                        {"files", options.files},
                        {"rows", prompts.prompts.size() + prompts.skipped.size()},
                        {"used", plan.prompts_used},
                        {"available_tokens", plan.available},
                        {"cut", plan.cut},
                        {"shortened", plan.shortened},
                        {"unused", plan.unused},
                        {"skipped", plan.skipped}};
  if (!prompts.date.empty()) prompt_record["date"] = prompts.date;
  if (!options.written.is_null()) prompt_record["written"] = options.written;
  if (options.text_hashes) {
    std::vector<std::vector<std::int32_t>> ids;
    for (const Prompt& prompt : prompts.prompts) ids.push_back(prompt.ids);
    prompt_record.update(used_text_record(ids));
  }
  Json part = {{"prompts", prompt_record},           {"tokens", plan.tokens},
               {"sequences", plan.pieces.size()},    {"longest_sequence", plan.longest},
               {"options", options_record(options)}, {"tool_version", options.tool_version}};
  if (plan.shard.is_part()) part["shard"] = shard_record(plan);
  s.metadata = {{"tool", {{"name", "oscar-collect"}, {"version", options.tool_version}}},
                {"model", {{"revision", checkpoint.location().revision}}},
                {"geometry", geometry},
                {"rows", {{"requested", options.rows}, {"kept", rows_kept}}},
                {"parts", Json::array({part})}};
  return s;
}

Statistics empty_shard(const Checkpoint& checkpoint, const std::string& fingerprint, const PromptSet& prompts,
                       const TokenPlan& plan, const CollectOptions& options) {
  Statistics s = statistics_header(checkpoint, fingerprint, prompts, plan, options, 0);
  s.layers.resize(static_cast<std::size_t>(checkpoint.config().kv_layers()));
  return s;
}

double far_queries(const Statistics& s) {
  // A layer with a sliding window shorter than the recent window has no such pairs; the other layers decide.
  double queries = 0;
  for (const LayerMoments& m : s.layers) {
    if (m.far_count.defined()) queries = std::max(queries, m.far_count[0].item<double>());
  }
  return queries;
}

void drop_empty_far_pairs(Statistics& s) {
  if (far_queries(s) > 0.0) return;
  for (LayerMoments& m : s.layers)
    for (const MetricField& field : kFarPairFields) m.*field.tensor = at::Tensor();
}

}  // namespace oscar
