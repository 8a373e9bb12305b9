// Inline SVG: the plot by position. Coordinates have one decimal; colors come from the page's series classes.
#include <algorithm>
#include <array>
#include <cmath>

#include "registry/registry.h"
#include "report/html/axes.h"
#include "report/html/parts.h"
#include "report/number_text.h"

namespace oscar::html {
double Axis::pixel(double value) const {
  const auto scale = [this](double x) { return logarithmic ? std::log10(x) : x; };
  return from + (to - from) * (scale(value) - scale(low)) / (scale(high) - scale(low));
}

DecadeAxis decade_axis(double low, double high, double from, double to) {
  const double first = std::floor(std::log10(low)), last = std::max(std::ceil(std::log10(high) + 1e-9), first + 1);
  DecadeAxis decades{{std::pow(10.0, first), std::pow(10.0, last), from, to, true}, {}};
  for (double d = first; d <= last + 0.5; d += 1) decades.ticks.push_back(std::pow(10.0, d));
  return decades;
}

namespace {

constexpr double kPlotWidth = 960, kPlotHeight = 320, kPlotLeft = 64, kPlotRight = 80, kPlotTop = 16, kPlotBottom = 44;

std::string text_at(double x, double y, const char* anchor, const std::string& text) {
  return "<text x=\"" + fixed(x, 1) + "\" y=\"" + fixed(y, 1) + "\" text-anchor=\"" + anchor + "\">" + text + "</text>";
}

std::string open_svg(const std::string& title, const std::string& description) {
  return "<svg viewBox=\"0 0 " + fixed(kPlotWidth, 0) + " " + fixed(kPlotHeight, 0) + "\" role=\"img\"><title>" +
         title + "</title><desc>" + description + "</desc>\n";
}

std::string horizontal_grid(const Axis& y, const std::vector<double>& ticks) {
  std::string text;
  for (const double tick : ticks) {
    const std::string at = fixed(y.pixel(tick), 1);
    text += "<line class=\"grid\" x1=\"" + fixed(kPlotLeft, 1) + "\" x2=\"" + fixed(kPlotWidth - kPlotRight, 1) +
            "\" y1=\"" + at + "\" y2=\"" + at + "\"/>" +
            text_at(kPlotLeft - 6, y.pixel(tick) + 4, "end", significant(tick, 3)) + "\n";
  }
  return text;
}

// The gate's limit across the plot, its number beside it.
std::string limit_line(const Axis& y, double limit) {
  const std::string at = fixed(y.pixel(limit), 1);
  return "<line class=\"gate\" x1=\"" + fixed(kPlotLeft, 1) + "\" x2=\"" + fixed(kPlotWidth - kPlotRight, 1) +
         "\" y1=\"" + at + "\" y2=\"" + at + "\"/>" +
         text_at(kPlotWidth - kPlotRight + 6, y.pixel(limit) + 4, "start", "gate " + significant(limit, 3)) + "\n";
}

// 1, 2 or 5 times a power of ten, for about `count` steps up to `high`.
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

constexpr std::array<const char*, 4> kDashes = {"", "7 3", "2 3", "9 3 2 3"};

std::string legend(const VerifyReport& report, const std::vector<const MethodReport*>& series) {
  std::string text = "<ul class=\"legend\">";
  for (const MethodReport* m : series) {
    const std::string css = series_class(report, *m);
    const auto index = static_cast<std::size_t>(css[1] - '0');
    text += "<li><svg class=\"" + css +
            "\" viewBox=\"0 0 34 12\" aria-hidden=\"true\">"
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
    if (b.kl <= 0) continue;  // has no logarithm
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

// At most eight lines are distinguishable: the candidate, the negative control, OSCAR (drift is compared with it), and
// the methods with the smallest KL.
std::vector<const MethodReport*> plotted_methods(const VerifyReport& report) {
  std::vector<const MethodReport*> list;
  for (const MethodReport& m : report.methods) {
    if (m.quantized) list.push_back(&m);
  }
  constexpr std::size_t kMost = 8;
  if (list.size() <= kMost) return list;
  const auto rank = [](const MethodReport* m) {
    if (m->evaluated) return -2.0;
    const bool kept = has_role(m->id, MethodRole::kNegativeControl) || has_role(m->id, MethodRole::kReference);
    return kept ? -1.0 : m->quality.kl.mean;
  };
  std::vector<const MethodReport*> sorted = list;
  std::stable_sort(sorted.begin(), sorted.end(), [&](const auto* a, const auto* b) { return rank(a) < rank(b); });
  sorted.resize(kMost);
  std::erase_if(list, [&](const auto* m) { return std::find(sorted.begin(), sorted.end(), m) == sorted.end(); });
  return list;
}

}  // namespace

std::string position_plot(const VerifyReport& report) {
  double low = 0, high = 0, last = 0;
  std::vector<const MethodReport*> series;
  for (const MethodReport* m : plotted_methods(report)) {
    bool positive = false;
    for (const PositionBucket& b : m->by_position) {
      if (b.kl <= 0) continue;
      low = low > 0 ? std::min(low, b.kl) : b.kl;
      high = std::max(high, b.kl);
      last = std::max(last, static_cast<double>(b.to));
      positive = true;
    }
    if (positive) series.push_back(m);
  }
  if (series.empty()) return "";
  const std::optional<double> limit = kl_limit(report);
  if (limit && *limit > 0) low = std::min(low, *limit), high = std::max(high, *limit);
  const DecadeAxis decades = decade_axis(low, high, kPlotHeight - kPlotBottom, kPlotTop);
  const Axis& y = decades.axis;
  const Axis x{0, last, kPlotLeft, kPlotWidth - kPlotRight};
  std::string text =
      open_svg("Mean KL to BF16 by position",
               "Logarithmic vertical axis, nats; horizontal axis: position of the token in its sequence.");
  if (report.scoring.first_position > 0) {
    const double edge = x.pixel(static_cast<double>(report.scoring.first_position));
    text += "<rect class=\"window\" x=\"" + fixed(kPlotLeft, 1) + "\" y=\"" + fixed(kPlotTop, 1) + "\" width=\"" +
            fixed(edge - kPlotLeft, 1) + "\" height=\"" + fixed(kPlotHeight - kPlotBottom - kPlotTop, 1) + "\"/>";
    if (edge - kPlotLeft > 70) text += text_at((kPlotLeft + edge) / 2, kPlotTop + 16, "middle", "not scored");
  }
  text += horizontal_grid(y, decades.ticks);
  const double step = round_step(last, 8);
  for (double tick = 0; tick <= last * (1 + 1e-9); tick += step) {
    text += text_at(x.pixel(tick), kPlotHeight - kPlotBottom + 16, "middle", significant(tick, 6));
  }
  text += text_at((kPlotLeft + kPlotWidth - kPlotRight) / 2, kPlotHeight - 8, "middle", "position") + "\n";
  if (limit && *limit > 0) text += limit_line(y, *limit);
  for (const MethodReport* m : series) text += kl_line(report, *m, x, y);
  return legend(report, series) + "<figure>" + framed(text + "</svg>", "KL by position") +
         "<figcaption>Mean KL (nats, logarithmic) by position. A line that climbs is drift with "
         "length. Queries in the gray part read nothing that is coded, so they are not scored.</figcaption></figure>\n";
}

}  // namespace oscar::html
