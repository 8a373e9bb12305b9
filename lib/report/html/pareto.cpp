// Bits against KL: every method as a point, and the Pareto front.
#include <algorithm>
#include <cmath>

#include "report/html/axes.h"
#include "report/html/parts.h"
#include "report/number_text.h"

namespace oscar::html {
namespace {

struct Point {
  const MethodReport* method;
  double bits, kl;
};

std::vector<Point> points_of(const std::vector<const MethodReport*>& methods) {
  std::vector<Point> points;
  for (const MethodReport* m : methods) points.push_back({m, m->bits_per_element, m->quality.kl.mean});
  std::stable_sort(points.begin(), points.end(),
                   [](const Point& a, const Point& b) { return a.bits != b.bits ? a.bits < b.bits : a.kl < b.kl; });
  return points;
}

// Places labels beside their marks without overlap of labels, marks or lines: right of the mark, left of it, or further
// up and down with a line to the mark.
class LabelPlacer {
 public:
  struct Place {
    double x = 0, y = 0;  // of the text's baseline
    bool left = false;    // the text ends at x
    bool far = false;
  };

  void block_mark(double x, double y) { taken_.push_back({x - 4, y - 4, x + 4, y + 4}); }

  void block_line(double x1, double y1, double x2, double y2) {
    const int steps = static_cast<int>(std::hypot(x2 - x1, y2 - y1) / 3) + 1;
    for (int i = 0; i <= steps; ++i) {
      const double part = static_cast<double>(i) / steps, x = x1 + part * (x2 - x1), y = y1 + part * (y2 - y1);
      taken_.push_back({x - 1.5, y - 1.5, x + 1.5, y + 1.5});
    }
  }

  Place place(double x, double y, std::size_t characters) {
    constexpr double kCharacter = 7.2, kAscent = 10, kDescent = 4, kStep = 7;
    const double width = kCharacter * static_cast<double>(characters);
    Place best{x + 7, y + 4, false, false};
    for (int i = 0; i < 160; ++i) {
      const int ring = i / 4;  // right and left, above and below, with growing distance
      const double shift = (i % 4 < 2 ? 1 : -1) * kStep * ring, away = ring > 1 ? 14 : 7;
      const bool left = i % 2 == 1;
      const Place p{left ? x - away : x + away, y + 4 + shift, left, ring > 1};
      const Box box{left ? p.x - width : p.x, p.y - kAscent, left ? p.x : p.x + width, p.y + kDescent};
      const bool inside = box.left >= kPlotLeft && box.right <= kPlotWidth - kPlotRight && box.top >= 0 &&
                          box.bottom <= kPlotHeight - kPlotBottom;
      if (!inside || std::any_of(taken_.begin(), taken_.end(), [&](const Box& t) { return overlap(t, box); })) continue;
      taken_.push_back(box);
      return p;
    }
    return best;  // no room left: a plot with very many methods
  }

 private:
  struct Box {
    double left, top, right, bottom;
  };
  static bool overlap(const Box& a, const Box& b) {
    return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  }
  std::vector<Box> taken_;
};

}  // namespace

std::vector<const MethodReport*> pareto_front(const std::vector<const MethodReport*>& methods) {
  std::vector<const MethodReport*> front;
  double best = INFINITY;
  for (const Point& p : points_of(methods)) {
    if (p.kl >= best) continue;
    best = p.kl;
    front.push_back(p.method);
  }
  return front;
}

namespace {

std::string pareto_plot(const VerifyReport& report, const std::vector<const MethodReport*>& methods) {
  const std::vector<Point> points = points_of(methods);
  double low = INFINITY, high = 0, most = 0, least = INFINITY;
  for (const Point& p : points) {
    low = std::min(low, p.kl), high = std::max(high, p.kl);
    most = std::max(most, p.bits), least = std::min(least, p.bits);
  }
  const std::optional<double> limit = kl_limit(report);
  if (limit && *limit > 0) low = std::min(low, *limit), high = std::max(high, *limit);
  const DecadeAxis decades = decade_axis(low, high, kPlotHeight - kPlotBottom, kPlotTop);
  const Axis x{std::floor(least * 2 - 0.5) / 2, std::ceil(most * 2 + 1.5) / 2, kPlotLeft, kPlotWidth - kPlotRight};
  std::string text = open_svg("Bits per element against mean KL to BF16",
                              "Each mark is one method; the line joins those that no other beats in both.");
  text += horizontal_grid(decades.axis, decades.ticks);
  text += bits_labels(x, "bits per element");
  LabelPlacer labels;
  if (limit && *limit > 0) {
    text += limit_line(decades.axis, *limit);
    labels.block_line(kPlotLeft, decades.axis.pixel(*limit), kPlotWidth - kPlotRight, decades.axis.pixel(*limit));
  }
  std::string path;
  double last_x = 0, last_y = 0;
  for (const MethodReport* m : pareto_front(methods)) {
    const double px = x.pixel(m->bits_per_element), py = decades.axis.pixel(m->quality.kl.mean);
    if (!path.empty()) labels.block_line(last_x, last_y, px, py);
    path += (path.empty() ? "M" : "L") + fixed(px, 1) + " " + fixed(py, 1);
    last_x = px, last_y = py;
  }
  text +=
      "<path d=\"" + path + "\" fill=\"none\" stroke=\"var(--good)\" stroke-width=\"1.5\" stroke-dasharray=\"4 3\"/>\n";
  for (const Point& p : points) labels.block_mark(x.pixel(p.bits), decades.axis.pixel(p.kl));
  for (const Point& p : points) {
    const double px = x.pixel(p.bits), py = decades.axis.pixel(p.kl);
    const std::string css = series_class(report, *p.method);
    text += "<g class=\"" + css + "\">" + marker(static_cast<std::size_t>(css[1] - '0'), px, py) + "<title>" +
            escape(series_name(*p.method)) + ": " + fixed(p.bits, 2) + " bits, KL " + significant(p.kl, 3) +
            "</title></g>";
    const LabelPlacer::Place place = labels.place(px, py, p.method->id.size());
    if (place.far) {
      text += "<line class=\"grid\" x1=\"" + fixed(px, 1) + "\" y1=\"" + fixed(py, 1) + "\" x2=\"" +
              fixed(place.left ? place.x + 2 : place.x - 2, 1) + "\" y2=\"" + fixed(place.y - 4, 1) + "\"/>";
    }
    text += "<text class=\"label\" x=\"" + fixed(place.x, 1) + "\" y=\"" + fixed(place.y, 1) + "\" text-anchor=\"" +
            (place.left ? "end" : "start") + "\">" + escape(p.method->id) + "</text>\n";
  }
  return "<figure>" + framed(text + "</svg>", "bits against KL") +
         "<figcaption>Mean KL (nats, logarithmic) against bits per element at the tested context. Dashed: the "
         "methods that no other one beats in both.</figcaption></figure>\n";
}

}  // namespace

std::string size_plots(const VerifyReport& report) {
  std::vector<const MethodReport*> bytes, others;
  double least = INFINITY, most = 0;
  for (const MethodReport& m : report.methods) {
    if (!m.quantized || !(m.quality.kl.mean > 0) || m.bits_per_element == 0) continue;
    if (m.comparison == "bytes") {
      bytes.push_back(&m);
      continue;
    }
    others.push_back(&m);
    least = std::min(least, m.bits_per_element), most = std::max(most, m.bits_per_element);
  }
  // Points at nearly the same horizontal position show nothing.
  constexpr double kEqual = 1.03;
  std::string text;
  if (bytes.size() > 1) {
    text +=
        "<h2>KL at equal bytes</h2>\n" +
        kl_bars(report, bytes,
                "Every method within 2 % of the bytes of " +
                    (report.target_bits ? fixed(*report.target_bits, 2) : std::string("equal")) + " bits per element.");
  }
  if (others.size() < 2) return text;
  if (most <= kEqual * least) {
    return text + "<h2>KL at equal bytes</h2>\n" +
           kl_bars(report, others,
                   "All methods take " + fixed(least, 2) +
                       (fixed(least, 2) == fixed(most, 2) ? "" : " to " + fixed(most, 2)) + " bits per element.");
  }
  return text + "<h2>Bits against KL</h2>\n" + pareto_plot(report, others);
}

}  // namespace oscar::html
