#include "statistics/show.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdlib>

#include "base/columns.h"
#include "base/foreign_text.h"
#include "base/formatted.h"
#include "layout/left_out.h"
#include "statistics/spectrum.h"
#include "statistics/statistics_format.h"

namespace oscar {
namespace {

constexpr std::size_t kShownText = 80;  // bytes of a name that are shown

// The matrices whose spectra are shown, in that order.
struct Shown {
  const char* key;
  const char* title;
  at::Tensor LayerMoments::*gram;
};
constexpr Shown kShown[] = {
    {"q", "Q^T Q", &LayerMoments::q_gram},
    {"k", "K^T K", &LayerMoments::k_gram},
    {"v", "V^T V", &LayerMoments::v_gram},
    {"o", "V^T S^T S V", &LayerMoments::o_gram},
    {"energy", "energy proxy", &LayerMoments::energy_gram},
};

// Mean over KV heads, per token, so that traces of files of different lengths compare.
Spectrum layer_spectrum(const LayerMoments& layer, const Shown& shown, std::int64_t tokens) {
  return Spectrum::of((layer.*shown.gram).mean(0) / static_cast<double>(tokens));
}

Json list_or(const Json& object, const char* key) {
  return object.is_object() && object.contains(key) ? object[key] : Json::array();
}

std::string short_hash(const std::string& hash) {
  const std::size_t digits = hash.find(':') == std::string::npos ? 0 : hash.find(':') + 1;
  return hash.substr(0, digits + 12);
}

std::string text_of(const Json& value) {
  return printable(value.is_string() ? value.get<std::string>() : value.dump(), kShownText);
}

}  // namespace

Json show_json(const Statistics& s) {
  Json out = statistics_metadata(s);
  Json layers = Json::array();
  for (std::size_t i = 0; i < s.layers.size() && s.tokens > 0; ++i) {
    Json entry = {{"layer", s.number(i)}};
    for (const Shown& shown : kShown) {
      const Spectrum spectrum = layer_spectrum(s.layers[i], shown, s.tokens);
      entry[shown.key] = {{"trace", spectrum.trace},
                          {"top8", spectrum.top8},
                          {"participation", spectrum.participation},
                          {"eigenvalues", spectrum.eigenvalues}};
    }
    if (s.layers[i].residual_energy.defined()) {
      entry["residual_energy"] = s.layers[i].residual_energy[0].item<double>() / static_cast<double>(s.tokens);
    }
    if (s.layers[i].attention_residual.defined()) {
      const at::Tensor all = s.layers[i].attention_residual[0];
      entry["attention_residual"] = (all[0] / all[1]).item<double>();
    }
    layers.push_back(std::move(entry));
  }
  out["layers"] = std::move(layers);
  return out;
}

std::string show_text(const Statistics& s, bool utf8) {
  std::string text;
  text += formatted("model      %s (%s)\n", printable(s.model_name, kShownText).c_str(),
                    printable(s.architecture, kShownText).c_str());
  text += formatted("           fingerprint %s\n", printable(short_hash(s.model_fingerprint)).c_str());
  text += formatted("geometry   %lld layers, %lld query heads, %lld KV heads, head_dim %lld, hidden %lld\n",
                    static_cast<long long>(s.model_layers()), static_cast<long long>(s.query_heads),
                    static_cast<long long>(s.kv_heads), static_cast<long long>(s.head_dim),
                    static_cast<long long>(s.hidden));
  if (!s.left_out.empty()) text += wrapped("left out   " + left_out_text(s.left_out), 11);
  text += formatted("tokens     %lld\n", static_cast<long long>(s.tokens));
  if (const std::int64_t distance = longest_distance(s); distance > 0) {
    text += formatted("distance   keys up to %lld tokens before their query\n", static_cast<long long>(distance));
  }
  for (const Json& part : list_or(s.metadata, "parts")) {
    const Json prompts = part["prompts"];
    std::string files;
    for (const Json& file : list_or(prompts, "files")) files += (files.empty() ? "" : ", ") + text_of(file);
    text += formatted("  prompts  %s: %s tokens in %s sequences, set %s\n", files.empty() ? "unnamed" : files.c_str(),
                      part["tokens"].dump().c_str(), part["sequences"].dump().c_str(),
                      short_hash(text_of(prompts["sha256"])).c_str());
    if (part.contains("shard")) {
      text += formatted("           shard %s of %s of a run of %s tokens\n", part["shard"]["index"].dump().c_str(),
                        part["shard"]["of"].dump().c_str(), part["shard"]["tokens"].dump().c_str());
    }
  }
  if (s.tokens == 0) return text;
  text += formatted("row sample %zu tokens for each layer\n\n", s.layers[0].row_priority.size());
  text +=
      "Spectra of the mean over KV heads, per token: trace, share of the 8 strongest directions,\n"
      "effective number of directions (participation ratio), and the eigenvalues from strongest to\n"
      "weakest (log scale, 6 decades).\n";
  for (const Shown& shown : kShown) {
    text += formatted("\n%-14s %11s %7s %7s\n", shown.title, "trace", "top 8", "eff.");
    for (std::size_t i = 0; i < s.layers.size(); ++i) {
      const Spectrum spectrum = layer_spectrum(s.layers[i], shown, s.tokens);
      text +=
          formatted("  layer %-6lld %11.4g %6.1f%% %7.1f  |%s|\n", static_cast<long long>(s.number(i)), spectrum.trace,
                    100 * spectrum.top8, spectrum.participation, spectrum_picture(spectrum, 32, utf8).c_str());
    }
  }
  return text;
}

bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    std::string upper = value;
    std::transform(upper.begin(), upper.end(), upper.begin(), [](unsigned char c) { return std::toupper(c); });
    return upper.find("UTF-8") != std::string::npos || upper.find("UTF8") != std::string::npos;
  }
  return false;
}

}  // namespace oscar
