// Where a method loses: by position, and by layer with its bit widths.
#include <algorithm>
#include <map>

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
  const bool lossy = std::any_of(method.layers.begin(), method.layers.end(),
                                 [](const LayerError& layer) { return layer.mean.attention_kl > 0; });
  if (!lossy) return "";
  const BundleFacts* bundle = bundle_of(report, method);
  const bool widths = bundle != nullptr && bundle->key_widths.size() == method.layers.size() &&
                      bundle->value_widths.size() == method.layers.size();
  std::string text = "<table><caption><span>" + escape(series_name(method)) +
                     ": layers that lose most come first</span></caption><thead><tr><th scope=\"col\">layer</th>";
  if (widths) text += "<th scope=\"col\">bits of keys</th><th scope=\"col\">bits of values</th>";
  text +=
      "<th scope=\"col\">attention KL</th><th scope=\"col\">key logits</th>"
      "<th scope=\"col\">output</th></tr></thead><tbody>\n";
  for (const std::size_t place : worst_first(method)) {
    const LayerError& layer = method.layers[place];
    text += "<tr><th scope=\"row\">" + std::to_string(layer.layer) + "</th>";
    if (widths) {
      text += "<td>" + widths_text(bundle->key_widths[place]) + "</td><td>" + widths_text(bundle->value_widths[place]) +
              "</td>";
    }
    text += "<td>" + significant(layer.mean.attention_kl, 2) + "</td><td>" + significant(layer.mean.k_logit, 2) +
            "</td><td>" + significant(layer.projected_output, 2) + "</td></tr>\n";
  }
  return framed(text + "</tbody></table>", "errors of each layer");
}

}  // namespace

std::string position_table(const VerifyReport& report) {
  constexpr std::size_t kTogether = 3;      // buckets of a column
  std::map<std::string, std::string> rows;  // by their columns: a server's rows may begin elsewhere
  for (const MethodReport& m : report.methods) {
    if (!m.quantized || m.by_position.empty()) continue;
    std::string row = "<tr><th scope=\"row\">" + escape(series_name(m)) + "</th>", columns;
    for (std::size_t begin = 0; begin < m.by_position.size(); begin += kTogether) {
      const std::size_t end = std::min(begin + kTogether, m.by_position.size());
      double kl = 0, tokens = 0;
      for (std::size_t i = begin; i < end; ++i) {
        kl += m.by_position[i].kl * static_cast<double>(m.by_position[i].tokens);
        tokens += static_cast<double>(m.by_position[i].tokens);
      }
      row += "<td>" + significant(kl / tokens, 2) + "</td>";
      columns += "<th scope=\"col\">to " + grouped(m.by_position[end - 1].to) + "</th>";
    }
    rows[columns] += row + "</tr>\n";
  }
  std::string text;
  for (const auto& [columns, body] : rows) {
    text += framed(
        "<table><caption><span>Mean KL (nats) of the scored tokens up to each position. One that climbs is "
        "drift with length.</span></caption><thead><tr><th scope=\"col\">method</th>" +
            columns + "</tr></thead><tbody>\n" + body + "</tbody></table>",
        "KL by position");
  }
  return text;
}

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
  return "<p>Attention KL: of the attention weights, in nats. Key logits: relative RMS error of q&middot;k over coded "
         "keys, each query's mean removed. Output: "
         "|o&prime; "
         "&minus; o| / |o| after the output projection. A width of 0 keeps only the mean of its channels.</p>\n" +
         text;
}

}  // namespace oscar::html
