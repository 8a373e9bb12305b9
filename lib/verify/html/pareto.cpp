// Bits against KL: every method as a point, and the front of those that no other one beats in both.
#include <algorithm>
#include <cmath>

#include "verify/html/axes.h"
#include "verify/html/parts.h"
#include "verify/number_text.h"

namespace oscar::html {
namespace {

struct Point {
  const MethodReport* method;
  double bits, kl;
};

std::vector<Point> points_of(const VerifyReport& report) {
  std::vector<Point> points;
  for (const MethodReport& m : report.methods) {
    if (m.quantised && m.quality.kl.mean > 0) points.push_back({&m, m.bits_per_element, m.quality.kl.mean});
  }
  std::stable_sort(points.begin(), points.end(),
                   [](const Point& a, const Point& b) { return a.bits != b.bits ? a.bits < b.bits : a.kl < b.kl; });
  return points;
}

}  // namespace

std::vector<const MethodReport*> pareto_front(const VerifyReport& report) {
  std::vector<const MethodReport*> front;
  double best = INFINITY;
  for (const Point& p : points_of(report)) {
    if (p.kl >= best) continue;
    best = p.kl;
    front.push_back(p.method);
  }
  return front;
}

std::string pareto_plot(const VerifyReport& report) {
  const std::vector<Point> points = points_of(report);
  if (points.size() < 2) return "";
  double low = INFINITY, high = 0, most = 0, least = INFINITY;
  for (const Point& p : points) {
    low = std::min(low, p.kl), high = std::max(high, p.kl);
    most = std::max(most, p.bits), least = std::min(least, p.bits);
  }
  const DecadeAxis decades = decade_axis(low, high, kPlotHeight - kPlotBottom, kPlotTop);
  const Axis x{std::floor(least * 2 - 0.5) / 2, std::ceil(most * 2 + 1.5) / 2, kPlotLeft, kPlotWidth - kPlotRight};
  std::string text = open_svg("Bits per element against mean KL to BF16",
                              "Each mark is one method; the line joins those that no other beats in both.");
  text += horizontal_grid(decades.axis, decades.ticks);
  const double step = round_step(x.high - x.low, 8);
  for (double tick = std::ceil(x.low / step) * step; tick <= x.high + 1e-9; tick += step) {
    text += text_at(x.pixel(tick), kPlotHeight - kPlotBottom + 16, "middle", significant(tick, 4));
  }
  text += text_at((kPlotLeft + kPlotWidth - kPlotRight) / 2, kPlotHeight - 8, "middle", "bits per element") + "\n";
  std::string path;
  for (const MethodReport* m : pareto_front(report)) {
    path += path.empty() ? "M" : "L";
    path += fixed(x.pixel(m->bits_per_element), 1);
    path += " ";
    path += fixed(decades.axis.pixel(m->quality.kl.mean), 1);
  }
  text +=
      "<path d=\"" + path + "\" fill=\"none\" stroke=\"var(--good)\" stroke-width=\"1.5\" stroke-dasharray=\"4 3\"/>\n";
  double below = -INFINITY;  // labels of close points step down
  for (const Point& p : points) {
    const double px = x.pixel(p.bits), py = decades.axis.pixel(p.kl);
    const std::string css = series_class(report, *p.method);
    text += "<g class=\"" + css + "\">" + marker(static_cast<std::size_t>(css[1] - '0'), px, py) + "<title>" +
            escape(series_name(*p.method)) + ": " + fixed(p.bits, 2) + " bits, KL " + significant(p.kl, 3) +
            "</title></g>";
    const double ly = std::fabs(py - below) < 9 ? below + 10 : py + 4;
    below = ly;
    text += text_at(px + 6, ly, "start", escape(p.method->id)) + "\n";
  }
  return "<figure>" + text +
         "</svg><figcaption>Mean KL (nats, logarithmic) against bits per element at the tested context. Dashed: the "
         "methods that no other one beats in both.</figcaption></figure>\n";
}

}  // namespace oscar::html
