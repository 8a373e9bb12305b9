#include "bundle/model_card.h"

#include <algorithm>
#include <cstdio>
#include <sstream>

namespace oscar {
namespace {

std::string text_of(const Json& object, const char* key) {
  if (!object.is_object() || !object.contains(key) || object[key].is_null()) return "";
  const Json& value = object[key];
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// YAML double-quoted scalar.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "\"";
}

std::string decimals(double value, int digits) {
  char text[40];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

void row(std::ostringstream& out, const std::string& name, const std::string& value) {
  if (!value.empty()) out << "| " << name << " | " << value << " |\n";
}

}  // namespace

double bundle_bits_per_element(const Bundle& bundle) {
  double bits = 0.0, elements = 0.0;
  for (const LayerTransform& layer : bundle.layers) {
    for (const SideTransform* side : {&layer.key, &layer.value}) {
      const double d = static_cast<double>(layer.head_dim);
      const double each = side->blocks() ? side->code(layer.head_dim, 0).bits_per_element()
                                         : 2.0 + 32.0 / (bundle.group > 0 ? static_cast<double>(bundle.group) : d);
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
  if (std::count(name.begin(), name.end(), '/') == 1) out << "base_model: " << quoted(name) << "\n";
  out << "library_name: oscar\ntags:\n- kv-cache\n- quantization\n- int2\n- " << quoted(bundle.method) << "\n---\n\n";
  out << "# " << title << (name.empty() ? "" : " for " + name) << "\n\n";
  out << "| | |\n|---|---|\n";
  row(out, "model", name);
  row(out, "architecture", text_of(bundle.model, "architecture"));
  row(out, "model fingerprint", bundle.model_fingerprint);
  if (!bundle.layers.empty()) {
    row(out, "geometry",
        std::to_string(bundle.layers.size()) + " layers, " + std::to_string(bundle.layers.front().kv_heads) +
            " KV heads, head size " + std::to_string(bundle.layers.front().head_dim));
  }
  row(out, "method", bundle.method + ", one rotation for each " + (bundle.scope == "head" ? "KV head" : "layer"));
  row(out, "code",
      "2 bits, group " + (bundle.group > 0 ? std::to_string(bundle.group) : std::string("whole head")) + ", " +
          decimals(bundle_bits_per_element(bundle), 3) + " bits per quantised element, encoder " + bundle.encoder);
  row(out, "windows",
      "first " + std::to_string(bundle.windows.sink) + " and last " + std::to_string(bundle.windows.recent) +
          " tokens in BF16");
  row(out, "Hadamard block", bundle.hadamard_block > 0 ? std::to_string(bundle.hadamard_block) : "");
  row(out, "one clip pair for all layers",
      "keys " + decimals(bundle.global_key_clip, 3) + ", values " + decimals(bundle.global_value_clip, 3) +
          " (0: off)");
  out << "\n";
  return out.str();
}

std::string bundle_card(const Bundle& bundle) {
  std::ostringstream out;
  out << card_head(bundle, "2-bit KV-cache rotations");
  out << "Written by `oscar-fit`. `" << kManifestName << "` is the manifest, `" << kRotationsName
      << "` holds the matrices; keys and queries are multiplied by M_K, values by M_V, attention outputs by the "
         "transpose of M_V.\n\n"
         "No measured quality is recorded here: run `oscar-verify --model ... --bundle ... --text ...` on your own "
         "text, then `oscar-export --report` to put its numbers into the card of the exported files.\n";
  if (!bundle.provenance.empty()) out << "\n## Provenance\n\n```json\n" << dump_json(bundle.provenance) << "```\n";
  return out.str();
}

}  // namespace oscar
