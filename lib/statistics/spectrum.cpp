#include "statistics/spectrum.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace oscar {

Spectrum Spectrum::of(const at::Tensor& gram) {
  Spectrum s;
  const at::Tensor values = at::linalg_eigvalsh(gram).flip(0).contiguous();  // ascending -> descending
  const double* data = values.const_data_ptr<double>();
  s.eigenvalues.assign(data, data + values.numel());
  double squares = 0.0;
  for (std::size_t i = 0; i < s.eigenvalues.size(); ++i) {
    double& value = s.eigenvalues[i];
    value = std::max(value, 0.0);
    s.trace += value;
    squares += value * value;
    if (i < 8) s.top8 += value;
  }
  s.top8 = s.trace > 0 ? s.top8 / s.trace : 0.0;
  s.participation = squares > 0 ? s.trace * s.trace / squares : 0.0;
  return s;
}

std::string spectrum_picture(const Spectrum& spectrum, int width, bool utf8) {
  static const char* const kBands[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  static const char* const kAscii[] = {" ", ".", ":", "-", "=", "+", "*", "#", "@"};
  constexpr double kDecades = 6.0;  // below 1e-6 of the largest eigenvalue: blank
  const int d = static_cast<int>(spectrum.eigenvalues.size());
  width = std::clamp(width, 1, std::max(d, 1));
  std::string picture;
  for (int column = 0; column < width; ++column) {
    const int begin = column * d / width, end = std::max(begin + 1, (column + 1) * d / width);
    double mean = 0.0;
    for (int i = begin; i < end && i < d; ++i) mean += spectrum.eigenvalues[i] / (end - begin);
    int level = 0;
    if (mean > 0 && spectrum.eigenvalues[0] > 0) {
      const double height = 1.0 + std::log10(mean / spectrum.eigenvalues[0]) / kDecades;
      level = std::clamp(static_cast<int>(std::lround(height * 8)), 0, 8);
    }
    picture += (utf8 ? kBands : kAscii)[level];
  }
  return picture;
}

}  // namespace oscar
