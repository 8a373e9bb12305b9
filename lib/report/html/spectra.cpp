// Spectra of keys and values before and after a bundle's transform, as small plots of some layers.
#include <algorithm>
#include <cmath>

#include "report/html/axes.h"
#include "report/html/parts.h"
#include "report/number_text.h"

namespace oscar::html {
namespace {

constexpr std::size_t kMostLayers = 4;

std::string line(const std::vector<double>& values, const Axis& x, const Axis& y, const char* css, const char* dashes) {
  std::string path;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double v = std::max(values[i], y.low);
    path += path.empty() ? "M" : "L";
    path += fixed(x.pixel(static_cast<double>(i)), 1);
    path += " ";
    path += fixed(y.pixel(v), 1);
  }
  return "<g class=\"" + std::string(css) + "\"><path d=\"" + path +
         "\" fill=\"none\" stroke=\"currentColor\" stroke-width=\"2\" stroke-dasharray=\"" + dashes + "\"/></g>\n";
}

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) sum += v;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

std::string plot(const LayerSpectrum& s) {
  double low = INFINITY, high = 0;
  for (const auto* values : {&s.before, &s.after}) {
    for (const double v : *values) {
      if (v > 0) low = std::min(low, v);
      high = std::max(high, v);
    }
  }
  if (!(high > 0) || s.before.size() < 2) return "";
  const DecadeAxis decades = decade_axis(std::max(low, high * 1e-8), high, kPlotHeight - kPlotBottom, kPlotTop);
  const Axis x{0, static_cast<double>(s.before.size() - 1), kPlotLeft, kPlotWidth - kPlotRight};
  const std::string name = std::string(s.side == "key" ? "keys" : "values") + " of layer " + std::to_string(s.layer);
  std::string text = open_svg("Variances of the channels of the " + name,
                              "Channels in descending order of variance, logarithmic; dashed before, solid after.");
  text += horizontal_grid(decades.axis, decades.ticks);
  const double step = round_step(x.high, 8);
  for (double tick = 0; tick <= x.high + 1e-9; tick += step) {
    text += text_at(x.pixel(tick), kPlotHeight - kPlotBottom + 16, "middle", significant(tick, 4));
  }
  text += text_at((kPlotLeft + kPlotWidth - kPlotRight) / 2, kPlotHeight - 8, "middle", "channel, by variance") + "\n";
  text += line(s.before, x, decades.axis, "s1", "6 4") + line(s.after, x, decades.axis, "s3", "");
  const auto ratio = [](const std::vector<double>& v) {
    return significant(v.front() / std::max(mean_of(v), 1e-300), 3);
  };
  return "<figure>" + text + "</svg><figcaption>" + name + ": largest variance over the mean " + ratio(s.before) +
         " before, " + ratio(s.after) + " after</figcaption></figure>\n";
}

}  // namespace

std::string spectrum_plots(const VerifyReport& report) {
  std::int64_t layers = 0;
  for (const LayerSpectrum& s : report.spectra) layers = std::max(layers, s.layer + 1);
  std::string text;
  for (const LayerSpectrum& s : report.spectra) {
    // The first, the last, and evenly spaced ones in between.
    bool shown = layers <= static_cast<std::int64_t>(kMostLayers);
    for (std::size_t i = 0; i < kMostLayers; ++i) {
      shown =
          shown || s.layer == static_cast<std::int64_t>(i) * (layers - 1) / static_cast<std::int64_t>(kMostLayers - 1);
    }
    if (shown) text += plot(s);
  }
  if (text.empty()) return "";
  return "<p>Variance of each channel on the scored text, mean over KV heads, with the transform of " +
         escape(report.bundles.empty() ? "the bundle" : report.bundles.front().source) +
         ". The flatter the line, the better one scale fits a row.</p>\n"
         "<ul class=\"legend\"><li class=\"s1\">&#x2504; before</li><li class=\"s3\">&mdash; after</li></ul>\n"
         "<div class=\"plots\">" +
         text + "</div>\n";
}

}  // namespace oscar::html
