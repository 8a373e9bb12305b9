// The spectrum of a second-moment matrix: how much of its energy the strongest directions hold.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace oscar {

struct Spectrum {
  std::vector<double> eigenvalues;  // descending; negative rounding errors are set to 0
  double trace = 0.0;
  double top8 = 0.0;           // share of the trace in the 8 largest eigenvalues, 0..1
  double participation = 0.0;  // (sum l)^2 / sum l^2: the effective number of directions, 1..d

  static Spectrum of(const at::Tensor& gram);  // [d, d] FP64, symmetric
};

// A histogram of log10(eigenvalue / largest) from the strongest to the weakest direction, `width` characters: eight
// block heights if the terminal supports UTF-8, ASCII otherwise. One step is 3/4 of a decade.
std::string spectrum_picture(const Spectrum& spectrum, int width, bool utf8);

}  // namespace oscar
