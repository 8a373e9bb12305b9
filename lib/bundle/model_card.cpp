#include "bundle/model_card.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "base/foreign_text.h"
#include "base/formatted.h"
#include "base/markup.h"
#include "checkpoint/model_name.h"
#include "layout/left_out.h"

namespace oscar {
namespace {

constexpr std::size_t kMostText = 300, kMostSets = 3;  // bytes of a value, prompt sets listed in a card

std::string text_of(const Json& object, const char* key) {
  if (!object.is_object() || !object.contains(key) || object[key].is_null()) return "";
  const Json& value = object[key];
  return value.is_string() ? value.get<std::string>() : value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// YAML double-quoted scalar.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : escape_text(text)) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

void row(std::ostringstream& out, const std::string& name, const std::string& value) {
  if (!value.empty()) out << "| " << name << " | " << markdown_text(printable(value, kMostText)) << " |\n";
}

// "a.jsonl, b.jsonl: 30000 tokens in 12 sequences, set 0123456789ab"
std::string prompt_set_text(const Json& part) {
  const Json prompts = json_member(part, "prompts"), files = json_member(prompts, "files");
  std::string names;
  if (files.is_array()) {
    for (const Json& file : files)
      names += (names.empty() ? "" : ", ") + (file.is_string() ? file.get<std::string>() : "");
  }
  return printable(names.empty() ? "unnamed" : names, kMostText) + ": " + text_of(part, "tokens") + " tokens in " +
         text_of(part, "sequences") + " sequences, set " + printable(text_of(prompts, "sha256"), 12);
}

// "groups of 0, 1, 2, 4 bits" or "2 bits, one scale for 64 channels".
std::string code_text(const Bundle& bundle) {
  std::set<int> widths;
  bool uniform = false, refined = false;
  for (const LayerTransform& layer : bundle.layers) {
    for (const SideTransform* side : {&layer.key, &layer.value}) {
      widths.insert(side->widths.begin(), side->widths.end());
      uniform = uniform || !side->blocks(), refined = refined || side->refined;
    }
  }
  std::string text;
  for (const int width : widths) text += (text.empty() ? "groups of " : ", ") + std::to_string(width);
  if (!text.empty()) text += refined ? " bits, refined" : " bits";
  if (!uniform) return text;
  const std::string scales = bundle.quant_group > 0 ? std::to_string(bundle.quant_group) + " channels" : "each head";
  return text + (text.empty() ? "" : "; ") + "2 bits, one scale for " + scales;
}

// What oscar-fit measured (provenance.measured); damaged records give no sentence.
std::string measured_sentence(const Bundle& bundle) {
  const Json m = json_member(bundle.provenance, "measured");
  for (const char* key : {"kl", "perplexity_ratio", "context"}) {
    if (!m.is_object() || !m.contains(key) || !m[key].is_number()) return "No measured quality is recorded here. ";
  }
  return "On text that the calibration did not see, the mean KL to the BF16 cache was " +
         formatted("%.3g", m["kl"].get<double>()) + " nats and perplexity " +
         formatted("%.3f", m["perplexity_ratio"].get<double>()) + " times that of BF16, in sequences of " +
         std::to_string(m["context"].get<std::int64_t>()) + " tokens. ";
}

}  // namespace

double bundle_bits_per_element(const Bundle& bundle) {
  double bits = 0.0, elements = 0.0;
  for (const LayerTransform& layer : bundle.layers) {
    for (const SideTransform* side : {&layer.key, &layer.value}) {
      const double d = static_cast<double>(layer.head_dim);
      const double group = bundle.quant_group > 0 ? static_cast<double>(bundle.quant_group) : d;
      const double each = side->blocks() ? side->code(layer.head_dim, 0).bits_per_element() : 2.0 + 32.0 / group;
      const double count = d * static_cast<double>(layer.kv_heads);
      bits += each * count, elements += count;
    }
  }
  return elements > 0.0 ? bits / elements : 2.25;
}

std::string card_head(const Bundle& bundle, const std::string& title) {
  std::ostringstream out;
  const std::string name = text_of(bundle.model, "name");
  out << "---\n";
  if (is_model_name(name) && name.find('/') != std::string::npos) out << "base_model: " << quoted(name) << "\n";
  out << "library_name: oscar\ntags:\n- kv-cache\n- quantization\n- int2\n- " << quoted(bundle.method) << "\n---\n\n";
  out << "# " << title << (name.empty() ? "" : " for " + markdown_text(name)) << "\n\n";
  out << "| | |\n|---|---|\n";
  row(out, "model", name);
  row(out, "architecture", text_of(bundle.model, "architecture"));
  row(out, "model fingerprint", bundle.model_fingerprint);
  if (!bundle.layers.empty()) {
    row(out, "geometry",
        std::to_string(bundle.layers.size()) + " layers, " + std::to_string(bundle.layers.front().kv_heads) +
            " KV heads, head size " + std::to_string(bundle.layers.front().head_dim));
  }
  if (bundle.latent()) {
    row(out, "latent attention",
        "values are the keys; " + std::to_string(bundle.rope_dim()) + " channels in BF16 beside");
  }
  const std::int64_t layers = bundle.model.value("layers", std::int64_t{0});
  row(out, "not in the bundle", markdown_text(left_out_text(read_left_out(bundle.model, layers, "the bundle"))));
  row(out, "method", bundle.method + ", one rotation for each " + (bundle.scope == "head" ? "KV head" : "layer"));
  row(out, "code",
      code_text(bundle) + ", " + formatted("%.3f", bundle_bits_per_element(bundle)) +
          " bits per quantized element, encoder " + bundle.encoder);
  row(out, "windows",
      "first " + std::to_string(bundle.windows.sink) + " and last " + std::to_string(bundle.windows.recent) +
          " tokens in BF16");
  row(out, "Hadamard block", bundle.hadamard_block > 0 ? std::to_string(bundle.hadamard_block) : "");
  if (bundle.global_key_clip > 0.0f || bundle.global_value_clip > 0.0f) {
    row(out, "one clip pair for all layers",
        "keys " + formatted("%.3f", bundle.global_key_clip) + ", values " +
            formatted("%.3f", bundle.global_value_clip) + " (0: off)");
  }
  out << "\n";
  return out.str();
}

std::string provenance_section(const Bundle& bundle) {
  const Json& p = bundle.provenance;
  if (p.empty()) return "";
  std::ostringstream out;
  out << "## Provenance\n\n| | |\n|---|---|\n";
  const Json tool = json_member(p, "tool"), statistics = json_member(p, "statistics");
  if (tool.is_object()) row(out, "tool", text_of(tool, "name") + " " + text_of(tool, "version"));
  row(out, "statistics", text_of(statistics, "file"));
  row(out, "their sha256", text_of(statistics, "sha256"));
  row(out, "calibration tokens", text_of(p, "tokens"));
  if (const std::int64_t distance = longest_distance(bundle); distance > 0) {
    row(out, "calibrated for",
        "contexts of up to " + std::to_string(distance + 1) + " tokens (keys up to " + std::to_string(distance) +
            " tokens before their query); longer ones were not seen");
  }
  const Json collection = json_member(p, "collection"), parts = json_member(collection, "parts");
  for (std::size_t i = 0; parts.is_array() && i < std::min(parts.size(), kMostSets); ++i) {
    row(out, "prompts", prompt_set_text(parts[i]));
  }
  if (parts.is_array() && parts.size() > kMostSets) {
    row(out, "prompts", "and " + std::to_string(parts.size() - kMostSets) + " more sets");
  }
  for (const char* key : {"options", "tuning", "absorbed", "key_objective", "value_objective"})
    row(out, key, text_of(p, key));
  out << "\nThe manifest of the bundle (`" << kManifestName << "`) has the whole record.\n";
  return out.str();
}

std::string bundle_card(const Bundle& bundle) {
  std::ostringstream out;
  out << card_head(bundle, "2-bit KV-cache rotations");
  out << "Written by `oscar-fit`. `" << kManifestName << "` is the manifest, `" << kRotationsName
      << "` holds the matrices; keys and queries are multiplied by M_K, values by M_V, attention outputs by the "
         "transpose of M_V.\n\n"
      << measured_sentence(bundle)
      << "Run `oscar-verify --model ... --bundle ... --text ...` on your own "
         "text, then `oscar-export --report` to put its numbers into the card of the exported files.\n";
  return out.str() + "\n" + provenance_section(bundle);
}

}  // namespace oscar
