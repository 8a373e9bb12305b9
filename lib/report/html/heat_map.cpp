// Errors of each layer as tables: one row for each method, the tint follows the logarithm of the number in the cell.
#include <algorithm>
#include <cmath>
#include <functional>

#include "report/html/parts.h"
#include "report/number_text.h"

namespace oscar::html {
namespace {

constexpr std::size_t kMostColumns = 48;  // deeper models show every second, third, ... layer

std::string heat_map(const VerifyReport& report, const std::string& caption,
                     const std::function<double(const LayerError&)>& value) {
  double low = INFINITY, high = 0;
  std::size_t layers = 0;
  for (const MethodReport& m : report.methods) {
    layers = std::max(layers, m.layers.size());
    for (const LayerError& l : m.layers) {
      if (value(l) <= 0) continue;
      low = std::min(low, value(l)), high = std::max(high, value(l));
    }
  }
  if (!(high > 0)) return "";
  const auto number_of = [&](std::size_t place) {  // layers without a KV cache have no column
    for (const MethodReport& m : report.methods) {
      if (place < m.layers.size()) return m.layers[place].layer;
    }
    return static_cast<std::int64_t>(place);
  };
  const std::size_t every = (layers + kMostColumns - 1) / kMostColumns;
  std::string text = "<table><caption><span>" + caption + "</span></caption><thead><tr><th scope=\"col\">method</th>";
  for (std::size_t l = 0; l < layers; l += every)
    text += "<th scope=\"col\">layer " + std::to_string(number_of(l)) + "</th>";
  text += "</tr></thead><tbody>\n";
  for (const MethodReport& m : report.methods) {
    if (m.layers.empty()) continue;
    text += "<tr><th scope=\"row\">" + escape(series_name(m)) + "</th>";
    for (std::size_t l = 0; l < layers; l += every) {
      if (l >= m.layers.size()) {
        text += "<td class=\"cell\">&ndash;</td>";
        continue;
      }
      const double v = value(m.layers[l]);
      const double share = v > 0 && high > low ? std::log(v / low) / std::log(high / low) : 0.0;
      text += "<td class=\"cell\" style=\"background: color-mix(in srgb, var(--bad-ground) " +
              percent(std::clamp(share, 0.0, 1.0), 0) + "%, var(--good-ground))\">" + significant(v, 2) + "</td>";
    }
    text += "</tr>\n";
  }
  return framed(text + "</tbody></table>", "errors of each layer");
}

}  // namespace

std::string layer_tables(const VerifyReport& report) {
  return heat_map(report, "Key-logit error: relative RMS of q&middot;k over coded keys, each query's mean removed",
                  [](const LayerError& l) { return l.mean.k_logit; }) +
         heat_map(report, "KL of the attention weights, nats",
                  [](const LayerError& l) { return l.mean.attention_kl; }) +
         heat_map(report, "Attention-output error |o&prime; &minus; o| / |o| behind the output projection",
                  [](const LayerError& l) { return l.projected_output; });
}

}  // namespace oscar::html
