// Layer errors: one row per layer, largest loss first, with its bit widths.
#include <algorithm>
#include <cmath>

#include "report/html/axes.h"
#include "report/html/parts.h"
#include "report/number_text.h"
#include "transform/profile_allocation.h"

namespace oscar::html {
namespace {

std::vector<std::size_t> worst_first(const MethodReport& method) {
  std::vector<std::size_t> order(method.layers.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return method.layers[a].mean.attention_kl > method.layers[b].mean.attention_kl;
  });
  return order;
}

std::string layer_table(const VerifyReport& report, const MethodReport& method) {
  double low = INFINITY, high = 0;
  for (const LayerError& layer : method.layers) {
    if (layer.mean.attention_kl <= 0) continue;
    low = std::min(low, layer.mean.attention_kl), high = std::max(high, layer.mean.attention_kl);
  }
  if (!(high > 0)) return "";
  const Axis axis = decade_axis(low, high, 0, 100).axis;
  const BundleFacts* bundle = bundle_of(report, method);
  const bool widths = bundle != nullptr && bundle->key_widths.size() == method.layers.size() &&
                      bundle->value_widths.size() == method.layers.size();
  std::string text =
      "<table class=\"dots\"><caption><span>" + escape(series_name(method)) +
      ": layers that lose most come first. Dots: KL of the attention weights, on a logarithmic scale from " +
      significant(axis.low, 2) + " to " + significant(axis.high, 2) +
      " nats.</span></caption><thead><tr><th scope=\"col\">layer</th>";
  if (widths) text += "<th scope=\"col\">bits of keys</th><th scope=\"col\">bits of values</th>";
  text +=
      "<th scope=\"col\">attention KL</th><th scope=\"col\" class=\"text\">smaller is better</th>"
      "<th scope=\"col\">key logits</th><th scope=\"col\">output</th></tr></thead><tbody>\n";
  for (const std::size_t place : worst_first(method)) {
    const LayerError& layer = method.layers[place];
    text += "<tr><th scope=\"row\">" + std::to_string(layer.layer) + "</th>";
    if (widths) {
      text += "<td>" + widths_text(bundle->key_widths[place]) + "</td><td>" + widths_text(bundle->value_widths[place]) +
              "</td>";
    }
    const double kl = layer.mean.attention_kl;
    text +=
        "<td>" + significant(kl, 2) + "</td><td class=\"track\"><div class=\"" + series_class(report, method) + "\">";
    if (kl > 0) text += "<i style=\"left:" + fixed(std::clamp(axis.pixel(kl), 0.0, 100.0), 2) + "%\"></i>";
    text += "</div></td><td>" + significant(layer.mean.k_logit, 2) + "</td><td>" +
            significant(layer.projected_output, 2) + "</td></tr>\n";
  }
  return framed(text + "</tbody></table>", "errors of each layer");
}

}  // namespace

std::string layer_tables(const VerifyReport& report) {
  const bool evaluated = std::any_of(report.methods.begin(), report.methods.end(),
                                     [](const MethodReport& m) { return m.evaluated && !m.layers.empty(); });
  std::string text;
  for (const MethodReport& m : report.methods) {
    if (m.evaluated != evaluated) continue;
    if (const std::string table = layer_table(report, m); !table.empty()) {
      const std::string worst = worst_layers_text(report, m);
      text += folded(escape(series_name(m)) + ", worst: " + escape(worst), table);
    }
  }
  if (text.empty()) return "";
  return "<p>Key logits: relative RMS error of q&middot;k over coded keys, each query's mean removed. Output: "
         "|o&prime; "
         "&minus; o| / |o| after the output projection. A width of 0 keeps only the mean of its channels.</p>\n" +
         text;
}

}  // namespace oscar::html
