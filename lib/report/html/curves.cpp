// The measured curve of every layer, keys and values, and the point chosen on it.
#include <algorithm>
#include <cmath>

#include "bundle/curve_allocation.h"
#include "report/html/axes.h"
#include "report/html/parts.h"
#include "report/number_text.h"

namespace oscar::html {
namespace {

constexpr double kLeastKl = 1e-7;  // nats: bottom of the logarithmic axis
constexpr double kMostBits = 4.5;

bool is_measured(const SideCurve& curve, const Widths& widths) {
  return std::any_of(curve.points.begin(), curve.points.end(),
                     [&](const CurvePoint& point) { return point.widths == widths; });
}

// A mark of the plot; its title appears under the pointer.
std::string mark(double px, double py, const char* style, const std::string& title) {
  return "<circle cx=\"" + fixed(px, 1) + "\" cy=\"" + fixed(py, 1) + "\" " + style + "><title>" + title +
         "</title></circle>\n";
}

// One side of all layers in one plot.
std::string plot(const BundleFacts& bundle, Side side, const Axis& x, const DecadeAxis& decades) {
  const Curves& curves = *bundle.curves;
  const int head_dim = static_cast<int>(curves.head_dim);
  const char* css = side == Side::kKey ? "s1" : "s3";
  const std::string name = curve_side_name(side);
  std::string text = open_svg("KL of the " + name + " of each layer, with only that side coded, by bits",
                              "One line for each layer, KL logarithmic; the marked point is what was chosen.");
  text += horizontal_grid(decades.axis, decades.ticks);
  for (double bits = 0; bits < kMostBits; bits += 1.0) {
    text += text_at(x.pixel(bits), kPlotHeight - kPlotBottom + 16, "middle", fixed(bits, 0));
  }
  text += text_at((kPlotLeft + kPlotWidth - kPlotRight) / 2, kPlotHeight - 8, "middle", "bits per element") + "\n";
  for (const SideCurve& curve : curves.curves) {
    if (curve.side != side) continue;
    const Widths& chosen =
        (side == Side::kKey ? bundle.key_widths : bundle.value_widths).at(static_cast<std::size_t>(curve.layer));
    const auto title = [&](const Widths& widths) {
      return "layer " + std::to_string(curve.layer) + " " + name + ", " + widths_text(widths) + ", " +
             significant(profile_bits(widths, head_dim), 3) + " bits: KL ";
    };
    std::string path, marks;
    for (const CurvePoint& point : curve.points) {
      const double px = x.pixel(profile_bits(point.widths, head_dim)),
                   py = decades.axis.pixel(std::max(point.kl, decades.axis.low));
      path += path.empty() ? 'M' : 'L';
      path += fixed(px, 1) + " " + fixed(py, 1);
      const bool taken = point.widths == chosen;
      marks += mark(px, py, taken ? "r=\"5\" fill=\"currentColor\"" : "r=\"2\" fill=\"currentColor\"",
                    title(point.widths) + significant(point.kl, 3) + " &#177; " + significant(point.error, 2) +
                        (taken ? " (chosen)" : ""));
    }
    const std::optional<double> kl = estimate_of(curve, chosen, head_dim);
    if (kl && !is_measured(curve, chosen)) {
      marks += mark(x.pixel(profile_bits(chosen, head_dim)), decades.axis.pixel(std::max(*kl, decades.axis.low)),
                    "r=\"5\" fill=\"none\" stroke=\"currentColor\"",
                    title(chosen) + significant(*kl, 3) + ", estimated (chosen)");
    }
    text += "<g class=\"" + std::string(css) + "\"><path d=\"" + path +
            "\" fill=\"none\" stroke=\"currentColor\" stroke-width=\"1.5\" opacity=\"0.6\"/>" + marks + "</g>\n";
  }
  return "<figure>" + framed(text + "</svg>", "curves of the " + name) + "<figcaption>" + name +
         ": KL with only that side of the layer coded; large points were chosen, hollow ones by an "
         "estimate</figcaption></figure>\n";
}

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

std::string curve_plots(const VerifyReport& report) {
  std::string text;
  for (const BundleFacts& bundle : report.bundles) {
    if (!bundle.curves || bundle.key_widths.size() != static_cast<std::size_t>(bundle.curves->layers())) continue;
    double low = 1.0, high = kLeastKl;
    for (const SideCurve& curve : bundle.curves->curves) {
      for (const CurvePoint& point : curve.points) {
        low = std::min(low, std::max(point.kl, kLeastKl));
        high = std::max(high, point.kl);
      }
    }
    const DecadeAxis decades = decade_axis(low, std::max(high, 10.0 * low), kPlotHeight - kPlotBottom, kPlotTop);
    const Axis x{0, kMostBits, kPlotLeft, kPlotWidth - kPlotRight};
    text += "<p>Mean KL to the BF16 cache with one side of one layer of " + escape(bundle.source) +
            " coded and everything else exact, measured by oscar-fit on " + std::to_string(bundle.curves->sequences) +
            " sequences of " + std::to_string(bundle.curves->context) + " tokens of " +
            escape(bundle.curves->text.value("name", std::string("calibration text"))) +
            ". Bits go where a bit takes off most.</p>\n";
    text += plot(bundle, Side::kKey, x, decades);
    text += plot(bundle, Side::kValue, x, decades);
    text += table(bundle);
  }
  return text;
}

}  // namespace oscar::html
