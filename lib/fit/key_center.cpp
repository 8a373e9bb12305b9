#include "fit/key_center.h"

#include <ATen/ATen.h>

#include "fit/for_each_head.h"

namespace oscar {
namespace {

// Remaining share of the keys' weight below which the term in every logit is worth its time.
constexpr double kWorthRotating = 0.95;

double weight(const SideMoments& m) { return (m.covariance * m.metric).sum().item<double>(); }

SideMoments rotated_moments(const Statistics& s, const FitOptions& o, std::size_t layer) {
  return side_moments(s, layer, Side::kKey, moment_choice(o, o.value_target, true, true));
}

double gain(const SideMoments& rotated, const SideMoments& plain) {
  const double whole = weight(plain);
  return whole > 0.0 ? weight(rotated) / whole : 1.0;
}

}  // namespace

bool can_rotate_means(const Statistics& s) { return 2 * s.rope_frequency.size(0) == s.head_dim; }

std::vector<double> rotated_mean_gains(const Statistics& s, const FitOptions& o,
                                       const std::vector<SideMoments>& plain) {
  std::vector<double> gains(s.layers.size());
  for_each_layer(gains.size(),
                 [&](std::size_t layer) { gains[layer] = gain(rotated_moments(s, o, layer), plain[layer]); });
  return gains;
}

std::vector<SideMoments> fitted_moments(const Statistics& s, const FitOptions& o, Side side, bool blocks) {
  const bool key = side == Side::kKey, centered = o.center != Center::kNone && (o.center != Center::kKey || key);
  const bool choose = key && o.center == Center::kAuto && blocks && o.context != 0 && can_rotate_means(s);
  std::vector<SideMoments> moments(s.layers.size());
  for_each_layer(moments.size(), [&](std::size_t layer) {
    const MomentChoice choice = moment_choice(o, o.value_target, centered, key && o.center == Center::kRope);
    moments[layer] = side_moments(s, layer, side, choice);
    if (!choose) return;
    SideMoments rotated = rotated_moments(s, o, layer);
    if (gain(rotated, moments[layer]) < kWorthRotating) moments[layer] = std::move(rotated);
  });
  return moments;
}

}  // namespace oscar
