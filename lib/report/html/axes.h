// The axes of plots and of tables with dots.
#pragma once

#include <vector>

namespace oscar::html {

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

}  // namespace oscar::html
