// Common parts of the SVG plots. Coordinates have one decimal; colors come from the page's series classes.
#pragma once

#include <string>
#include <vector>

namespace oscar::html {

inline constexpr double kPlotWidth = 960, kPlotHeight = 320, kPlotLeft = 64, kPlotRight = 80, kPlotTop = 16,
                        kPlotBottom = 44;

struct Axis {
  double low = 0, high = 1, from = 0, to = 1;  // data range and the pixels it maps to
  bool logarithmic = false;
  double pixel(double value) const;
};

struct DecadeAxis {
  Axis axis;
  std::vector<double> ticks;  // powers of ten
};
DecadeAxis decade_axis(double low, double high, double from, double to);  // low > 0

std::string text_at(double x, double y, const char* anchor, const std::string& text);
std::string open_svg(const std::string& title, const std::string& description);
std::string horizontal_grid(const Axis& y, const std::vector<double>& ticks);
double round_step(double high, int count);  // 1, 2 or 5 times a power of ten, for about `count` steps up to `high`
std::string limit_line(const Axis& y, double limit);  // the gate's limit across the plot, its number beside it
std::string marker(std::size_t series, double x, double y);

}  // namespace oscar::html
