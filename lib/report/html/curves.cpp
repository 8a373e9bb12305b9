// The bit widths of every layer, and what its measured curve says of them.
#include "bundle/curve_allocation.h"
#include "report/html/parts.h"
#include "report/number_text.h"

namespace oscar::html {
namespace {

std::string cell(const SideCurve& curve, const Widths& widths, int head_dim, double total) {
  const std::optional<double> kl = estimate_of(curve, widths, head_dim);
  return "<td>" + widths_text(widths) + "</td><td>" + significant(profile_bits(widths, head_dim), 3) + "</td><td>" +
         (kl ? significant(*kl, 3) : std::string("not measured")) + "</td><td>" +
         (kl && total > 0.0 ? percent(*kl / total, 1) + "%" : std::string("")) + "</td>";
}

std::string table(const BundleFacts& bundle) {
  const Curves& curves = *bundle.curves;
  double total = 0.0;
  for (const SideCurve& curve : curves.curves) {
    const auto& widths = curve.side == Side::kKey ? bundle.key_widths : bundle.value_widths;
    total += estimate_of(curve, widths.at(static_cast<std::size_t>(curve.layer)), static_cast<int>(curves.head_dim))
                 .value_or(0.0);
  }
  std::string text = "<table><thead><tr><th>layer</th>";
  for (std::size_t side = 0; side < 2; ++side) {
    text += "<th>" + std::string(curve_side_name(side == 0 ? Side::kKey : Side::kValue)) +
            "</th><th>bits</th><th>KL</th><th>share</th>";
  }
  text += "</tr></thead><tbody>\n";
  for (std::size_t place = 0; place < curves.curves.size(); place += 2) {
    const auto layer = static_cast<std::size_t>(curves.curves[place].layer);
    const int head_dim = static_cast<int>(curves.head_dim);
    text += "<tr><td>" + std::to_string(layer) + "</td>" +
            cell(curves.curves[place], bundle.key_widths.at(layer), head_dim, total);
    text += cell(curves.curves[place + 1], bundle.value_widths.at(layer), head_dim, total);
    text += "</tr>\n";
  }
  return framed(text + "</tbody></table>", "where the bytes of each layer go");
}

}  // namespace

std::string widths_text(const Widths& widths) {
  std::string text;
  for (const std::uint8_t width : widths) {
    if (!text.empty()) text += '-';
    text += std::to_string(width);
  }
  return text;
}

std::string curve_tables(const VerifyReport& report) {
  std::string text;
  for (const BundleFacts& bundle : report.bundles) {
    if (!bundle.curves || bundle.key_widths.size() != static_cast<std::size_t>(bundle.curves->layers())) continue;
    text += "<p>Mean KL to the BF16 cache with one side of one layer of " + escape(bundle.source) +
            " coded and everything else exact, measured by oscar-fit on " + std::to_string(bundle.curves->sequences) +
            " sequences of " + std::to_string(bundle.curves->context) + " tokens of " +
            escape(bundle.curves->text.value("name", std::string("calibration text"))) +
            ". Bits go where a bit takes off most.</p>\n";
    text += folded("Bits of each layer of " + escape(bundle.source), table(bundle));
  }
  return text;
}

}  // namespace oscar::html
