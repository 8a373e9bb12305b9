#include "fit/waterfill.h"

#include <algorithm>
#include <cmath>

namespace oscar {

double band_distortion(int width) {
  switch (width) {
    case 0:
      return 1.0;
    case 1:
      return 0.3634;  // 1 - 2/pi
    case 2:
      return 0.1188;
    default:
      return 0.0115;
  }
}

double refined_distortion(int first, int second) {
  return band_distortion(first) * (second == 4 ? 0.018 : second == 2 ? 0.15 : 0.30);
}

double unbiased_distortion(int width) {
  switch (width) {
    case 0:
      return 0.0;
    case 1:
      return 0.571;  // pi/2 - 1
    case 2:
      return 0.133;
    default:
      return 0.0116;
  }
}

double logit_noise(const HeadEnergy& head, const Widths& widths) {
  double variance = 0.0;
  for (std::size_t b = 0; b < kBands; ++b) variance += head.logit_noise[b] * unbiased_distortion(widths[b]);
  if (!widths.refined) return variance;
  return variance - head.logit_noise.back() * unbiased_distortion(widths.back()) +
         head.logit_noise.front() *
             (refined_distortion(widths.front(), widths.back()) - unbiased_distortion(widths.front()));
}

double logit_noise_factor(double variance) {
  constexpr double kMost = 200.0;  // e^200 is still finite in a double
  if (!(variance > 0.0)) return 1.0;
  const double bounded = std::min(variance, kMost);
  return std::expm1(bounded) / bounded;
}

// Of a block of a profile.
static double distortion(const Widths& widths, std::size_t block) {
  if (widths.refined && block == 0) return refined_distortion(widths.front(), widths.back());
  return band_distortion(widths.refined && block + 1 == kBands ? 0 : widths[block]);
}

double predicted_error(const SideEnergy& energy, const Widths& widths) {
  double error = 0.0;
  for (const HeadEnergy& head : energy.heads) {
    double linear = 0.0;
    for (std::size_t b = 0; b < kBands; ++b) linear += head.block[b] * distortion(widths, b);
    error += linear * logit_noise_factor(logit_noise(head, widths));
  }
  return error;
}

Allocation waterfill(const std::vector<SideEnergy>& key, const std::vector<SideEnergy>& value, int head_dim,
                     double bits, const std::vector<Widths>& profiles) {
  std::vector<std::vector<ProfilePoint>> places;
  for (const std::vector<SideEnergy>* sides : {&key, &value}) {
    for (const SideEnergy& side : *sides) {
      std::vector<ProfilePoint>& place = places.emplace_back();
      for (const Widths& widths : profiles) place.push_back({widths, predicted_error(side, widths)});
    }
  }
  const std::vector<std::size_t> choice = allocate_profiles(places, head_dim, bits);
  Allocation out;
  for (std::size_t p = 0; p < places.size(); ++p) {
    const Widths& widths = places[p][choice[p]].widths;
    (p < key.size() ? out.key : out.value).push_back(widths);
    out.bits += profile_bits(widths, head_dim) / static_cast<double>(places.size());
  }
  return out;
}

}  // namespace oscar
