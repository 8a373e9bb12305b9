#include "checkpoint/fingerprint_1.h"

#include "base/formatted.h"

namespace oscar {
namespace {

std::string number(double value) { return formatted("%.17g", value); }

std::string rope_text(const RopeConfig& r) {
  std::string text = "rope " + std::to_string(static_cast<int>(r.type)) + (r.truncate ? " 1 " : " 0 ");
  for (const double x : {r.theta, r.factor, r.low_freq_factor, r.high_freq_factor,
                         static_cast<double>(r.original_max_position), r.beta_fast, r.beta_slow, r.attention_factor}) {
    text += number(x) + " ";
  }
  return text;
}

// Empty for routers without these features.
std::string routing_text(const ExpertConfig& e) {
  if (e.groups == 1 && e.shared == 0 && e.scaling == 1.0 && e.least_sum == 0.0) return "";
  std::string text = "routing";
  for (const std::int64_t n : {e.groups, e.groups_chosen, e.shared}) text += " " + std::to_string(n);
  return text + " " + number(e.scaling) + " " + number(e.least_sum) + "\n";
}

// Facts that only some families have. Empty for families whose fingerprints existed before these facts.
std::string family_text(const ModelConfig& c) {
  std::string text;
  const RopeConfig& r = c.rope;
  if (r.partial != 1.0 || r.interleaved) text += "turning " + number(r.partial) + (r.interleaved ? " pairs\n" : "\n");
  if (!r.short_factor.empty()) {
    text += "factors";
    for (const auto* factors : {&r.short_factor, &r.long_factor}) {
      for (const double x : *factors) text += " " + number(x);
    }
    text += "\n";
  }
  if (!c.layer_rope.empty()) {
    text += "local " + rope_text(c.local_rope) + "\nlayers";
    for (const LayerRope kind : c.layer_rope) text += " " + std::to_string(static_cast<int>(kind));
    text += "\n";
  }
  if (!c.local.layers.empty()) {
    text += "local heads " + std::to_string(c.local.kv_heads) + " " + std::to_string(c.local.head_dim) + "\n";
  }
  if (c.keys_as_values) text += "keys as values\n";
  if (!c.shared.source.empty()) {
    text += "caches " + std::to_string(c.shared.intermediate);
    for (const std::int64_t source : c.shared.source) text += " " + std::to_string(source);
    text += "\n";
  }
  if (c.layer_input > 0) text += "layer embeddings " + std::to_string(c.layer_input) + "\n";
  if (!c.chunk.empty()) {
    text += "chunks";
    for (const std::int64_t chunk : c.chunk) text += " " + std::to_string(chunk);
    text += c.unit_qk_norm ? " unit\n" : "\n";
  }
  if (const QueryScale& q = c.query_scale; q.length > 0.0) {
    text += "queries " + number(q.beta) + " " + number(q.length) + "\n";
  }
  if (c.attention_scale > 0.0) text += "scale " + number(c.attention_scale) + "\n";
  if (c.logit_soft_cap > 0.0 || c.final_soft_cap > 0.0) {
    text += "caps " + number(c.logit_soft_cap) + " " + number(c.final_soft_cap) + "\n";
  }
  if (c.logit_scale > 0.0) {
    text += "multipliers";
    for (const double x : {c.embedding_scale, c.residual_scale, c.logit_scale}) text += " " + number(x);
    text += "\n";
  }
  if (!c.linear.layers.empty()) {
    const LinearAttention& l = c.linear;
    text += "linear";
    for (const std::int64_t n : {l.key_heads, l.value_heads, l.key_dim, l.value_dim, l.kernel}) {
      text += " " + std::to_string(n);
    }
    for (const bool linear : l.layers) text += linear ? " 1" : " 0";
    text += "\n";
  }
  if (c.experts.count > 0) {
    text += "experts";
    for (const std::int64_t n : {c.experts.count, c.experts.per_token, c.experts.intermediate}) {
      text += " " + std::to_string(n);
    }
    text += c.experts.normalized ? " normalized " : " plain ";
    text += number(c.experts.gate_gain) + " " + number(c.experts.gate_limit);
    for (const bool sparse : c.experts.layers) text += sparse ? " 1" : " 0";
    text += "\n";
    text += routing_text(c.experts);
  }
  return text;
}

}  // namespace

std::string fingerprint_1_text(const ModelConfig& c) {
  std::string text = "oscar-fingerprint-1\n" + c.architecture + "\n";
  for (const std::int64_t n :
       {c.layers, c.hidden, c.intermediate, c.vocabulary, c.query_heads, c.kv_heads, c.head_dim}) {
    text += std::to_string(n) + " ";
  }
  text += number(c.rms_eps) + (c.tie_embeddings ? " tied\n" : " untied\n");
  text += rope_text(c.rope);
  text += "\nwindows";
  for (const std::int64_t window : c.sliding_window) text += " " + std::to_string(window);
  return text + "\n" + family_text(c);
}

}  // namespace oscar
