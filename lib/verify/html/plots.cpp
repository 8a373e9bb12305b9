// Inline SVG plots. Coordinates are written with one decimal; colours come from the page's series classes.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "verify/html/parts.h"
#include "verify/number_text.h"

namespace oscar::html {
namespace {

constexpr double kWidth = 760, kHeight = 300, kLeft = 64, kRight = 16, kTop = 16, kBottom = 44;
constexpr std::array<const char*, 4> kDashes = {"", "7 3", "2 3", "9 3 2 3"};

struct Axis {
  double low = 0, high = 1, from = 0, to = 1;  // data range and the pixels it maps to
  bool logarithmic = false;
  double pixel(double value) const {
    const auto scale = [this](double x) { return logarithmic ? std::log10(x) : x; };
    return from + (to - from) * (scale(value) - scale(low)) / (scale(high) - scale(low));
  }
};

std::string text_at(double x, double y, const char* anchor, const std::string& text) {
  return "<text x=\"" + fixed(x, 1) + "\" y=\"" + fixed(y, 1) + "\" text-anchor=\"" + anchor + "\">" + text + "</text>";
}

std::string open_svg(const std::string& title, const std::string& description) {
  return "<svg viewBox=\"0 0 " + fixed(kWidth, 0) + " " + fixed(kHeight, 0) + "\" role=\"img\"><title>" + title +
         "</title><desc>" + description + "</desc>\n";
}

std::string horizontal_grid(const Axis& y, const std::vector<double>& ticks) {
  std::string text;
  for (const double tick : ticks) {
    const std::string at = fixed(y.pixel(tick), 1);
    text += "<line class=\"grid\" x1=\"" + fixed(kLeft, 1) + "\" x2=\"" + fixed(kWidth - kRight, 1) + "\" y1=\"" + at +
            "\" y2=\"" + at + "\"/>" + text_at(kLeft - 6, y.pixel(tick) + 4, "end", significant(tick, 3)) + "\n";
  }
  return text;
}

// 1, 2 or 5 times a power of ten, about `count` of them up to `high`.
double round_step(double high, int count) {
  const double raw = high / count;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double m : {1.0, 2.0, 5.0}) {
    if (raw <= m * power * (1 + 1e-9)) return m * power;
  }
  return 10 * power;
}

std::string marker(std::size_t series, double x, double y) {
  const std::string at = "translate(" + fixed(x, 1) + " " + fixed(y, 1) + ")";
  switch (series % 4) {
    case 0:
      return "<circle r=\"3\" transform=\"" + at + "\" fill=\"currentColor\"/>";
    case 1:
      return "<path d=\"M-3.5 3L3.5 3L0 -4Z\" transform=\"" + at + "\" fill=\"currentColor\"/>";
    case 2:
      return "<rect x=\"-3\" y=\"-3\" width=\"6\" height=\"6\" transform=\"" + at + "\" fill=\"currentColor\"/>";
    default:
      return "<path d=\"M0 -4.5L4.5 0L0 4.5L-4.5 0Z\" transform=\"" + at + "\" fill=\"currentColor\"/>";
  }
}

std::string legend(const VerifyReport& report, const std::vector<const MethodReport*>& series) {
  std::string text = "<ul class=\"legend\">";
  for (const MethodReport* m : series) {
    const std::string css = series_class(report, *m);
    const auto index = static_cast<std::size_t>(css[1] - '0');
    text += "<li><svg class=\"" + css +
            "\" style=\"width:2.2em;height:.8em;border:0;background:none\" viewBox=\"0 0 34 12\" aria-hidden=\"true\">"
            "<path d=\"M0 6H34\" stroke=\"currentColor\" stroke-width=\"2\" stroke-dasharray=\"" +
            kDashes[index % kDashes.size()] + "\"/>" + marker(index, 17, 6) + "</svg> " + escape(series_name(*m)) +
            "</li>";
  }
  return text + "</ul>\n";
}

std::string kl_line(const VerifyReport& report, const MethodReport& m, const Axis& x, const Axis& y) {
  const std::string css = series_class(report, m);
  const auto index = static_cast<std::size_t>(css[1] - '0');
  std::string path, marks;
  for (const PositionBucket& b : m.by_position) {
    if (b.kl <= 0) continue;  // a logarithm has no place for it
    const double px = x.pixel(0.5 * static_cast<double>(b.from + b.to)), py = y.pixel(b.kl);
    path += path.empty() ? "M" : "L";
    path += fixed(px, 1);
    path += " ";
    path += fixed(py, 1);
    marks += marker(index, px, py);
  }
  if (path.empty()) return "";
  return "<g class=\"" + css + "\"><path d=\"" + path +
         "\" fill=\"none\" stroke=\"currentColor\" stroke-width=\"2\" stroke-dasharray=\"" +
         kDashes[index % kDashes.size()] + "\"/>" + marks + "</g>\n";
}

std::string layer_bars(const VerifyReport& report, const std::vector<const MethodReport*>& series,
                       const std::string& title, const std::function<double(const LayerError&)>& value) {
  double high = 0;
  for (const MethodReport* m : series) {
    for (const LayerError& l : m->layers) high = std::max(high, value(l));
  }
  if (high <= 0) return "";
  const double step = round_step(high, 5);
  const Axis y{0, std::ceil(high / step - 1e-9) * step, kHeight - kBottom, kTop};
  std::vector<double> ticks;
  for (int i = 0; i * step <= y.high * (1 + 1e-9); ++i) ticks.push_back(i * step);
  std::string text = open_svg(title, "Bars of each layer, one for each method; the numbers are in report.json.");
  text += horizontal_grid(y, ticks);
  const std::size_t layers = series.front()->layers.size();
  const double slot = (kWidth - kLeft - kRight) / static_cast<double>(layers);
  const double bar = 0.8 * slot / static_cast<double>(series.size());
  const std::size_t label_every = (layers + 15) / 16;
  for (std::size_t l = 0; l < layers; ++l) {
    const double left = kLeft + slot * static_cast<double>(l) + 0.1 * slot;
    for (std::size_t s = 0; s < series.size(); ++s) {
      if (l >= series[s]->layers.size()) continue;
      const double v = value(series[s]->layers[l]);
      text += "<rect class=\"" + series_class(report, *series[s]) + "\" fill=\"currentColor\" x=\"" +
              fixed(left + bar * static_cast<double>(s), 1) + "\" y=\"" + fixed(y.pixel(v), 1) + "\" width=\"" +
              fixed(std::max(bar - 0.5, 0.3), 1) + "\" height=\"" + fixed(y.from - y.pixel(v), 1) + "\"><title>layer " +
              std::to_string(series[s]->layers[l].layer) + ", " + escape(series_name(*series[s])) + ": " +
              significant(v, 4) + "</title></rect>";
    }
    if (l % label_every == 0) {
      text +=
          text_at(left + 0.4 * slot, kHeight - kBottom + 16, "middle", std::to_string(series.front()->layers[l].layer));
    }
    text += "\n";
  }
  text += text_at((kLeft + kWidth - kRight) / 2, kHeight - 8, "middle", "layer");
  return "<figure>" + text + "</svg><figcaption>" + title + "</figcaption></figure>\n";
}

}  // namespace

std::string position_plot(const VerifyReport& report) {
  double low = 0, high = 0, last = 0;
  std::vector<const MethodReport*> series;
  for (const MethodReport& m : report.methods) {
    bool positive = false;
    for (const PositionBucket& b : m.by_position) {
      if (b.kl <= 0) continue;
      low = low > 0 ? std::min(low, b.kl) : b.kl;
      high = std::max(high, b.kl);
      last = std::max(last, static_cast<double>(b.to));
      positive = true;
    }
    if (positive) series.push_back(&m);
  }
  if (series.empty()) return "";
  const double first_decade = std::floor(std::log10(low)), last_decade = std::ceil(std::log10(high) + 1e-9);
  const Axis y{std::pow(10.0, first_decade), std::pow(10.0, std::max(last_decade, first_decade + 1)), kHeight - kBottom,
               kTop, true};
  const Axis x{0, last, kLeft, kWidth - kRight};
  std::vector<double> ticks;
  for (double d = first_decade; d <= std::max(last_decade, first_decade + 1) + 0.5; d += 1) {
    ticks.push_back(std::pow(10.0, d));
  }
  std::string text =
      open_svg("Mean KL to BF16 by position",
               "Logarithmic vertical axis, nats; horizontal axis: position of the token in its sequence.");
  if (report.scoring.first_position > 0) {
    const double edge = x.pixel(static_cast<double>(report.scoring.first_position));
    text += "<rect class=\"window\" x=\"" + fixed(kLeft, 1) + "\" y=\"" + fixed(kTop, 1) + "\" width=\"" +
            fixed(edge - kLeft, 1) + "\" height=\"" + fixed(kHeight - kBottom - kTop, 1) + "\"/>";
    if (edge - kLeft > 100) text += text_at((kLeft + edge) / 2, kTop + 16, "middle", "BF16 windows");
  }
  text += horizontal_grid(y, ticks);
  const double step = round_step(last, 8);
  for (double tick = 0; tick <= last * (1 + 1e-9); tick += step) {
    text += text_at(x.pixel(tick), kHeight - kBottom + 16, "middle", significant(tick, 6));
  }
  text += text_at((kLeft + kWidth - kRight) / 2, kHeight - 8, "middle", "position") + "\n";
  for (const MethodReport* m : series) text += kl_line(report, *m, x, y);
  return legend(report, series) + "<figure>" + text +
         "</svg><figcaption>Mean KL (nats, logarithmic) by position. A line that climbs is drift with "
         "length.</figcaption></figure>\n";
}

std::string layer_plots(const VerifyReport& report) {
  std::vector<const MethodReport*> series;
  for (const MethodReport& m : report.methods) {
    if (m.quantised && !m.layers.empty()) series.push_back(&m);
  }
  if (series.empty()) return "";
  return legend(report, series) + "<div class=\"plots\">" +
         layer_bars(report, series, "Key-logit error: relative RMS of q&middot;k over quantised keys",
                    [](const LayerError& l) { return l.k_logit; }) +
         layer_bars(report, series, "Attention-output error: |o&prime; &minus; o| / |o| before the output projection",
                    [](const LayerError& l) { return l.attention_output; }) +
         "</div>\n";
}

}  // namespace oscar::html
