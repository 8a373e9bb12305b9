#include "fit/key_center.h"

#include <ATen/ATen.h>

#include "fit/for_each_head.h"
#include "fit/side_moments.h"

namespace oscar {
namespace {

// Remaining share of the keys' weight below which the term in every logit is worth its time.
constexpr double kWorthRotating = 0.95;

double key_weight(const Statistics& s, const FitOptions& o, std::size_t layer, bool rotated) {
  const SideMoments m = side_moments(s, layer, Side::kKey, moment_choice(o, o.value_target, true, rotated));
  return (m.covariance * m.metric).sum().item<double>();
}

}  // namespace

bool can_rotate_means(const Statistics& s) { return 2 * s.rope_frequency.size(0) == s.head_dim; }

std::vector<double> rotated_mean_gains(const Statistics& s, const FitOptions& o) {
  std::vector<double> gains(s.layers.size());
  for_each_layer(gains.size(), [&](std::size_t layer) {
    const double plain = key_weight(s, o, layer, false);
    gains[layer] = plain > 0.0 ? key_weight(s, o, layer, true) / plain : 1.0;
  });
  return gains;
}

std::vector<bool> layers_with_rotated_mean(const Statistics& s, const FitOptions& o, bool blocks) {
  std::vector<bool> out(s.layers.size(), o.center == Center::kRope);
  if (o.center != Center::kAuto || !blocks || o.context == 0 || !can_rotate_means(s)) return out;
  const std::vector<double> gains = rotated_mean_gains(s, o);
  for (std::size_t layer = 0; layer < out.size(); ++layer) out[layer] = gains[layer] < kWorthRotating;
  return out;
}

}  // namespace oscar
