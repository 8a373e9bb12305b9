#include "bundle/curve_estimate.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "transform/profile_allocation.h"

namespace oscar {
namespace {

constexpr double kLeastKl = 1e-9;      // a smaller KL is a rounding error of its own sum
constexpr double kLeastShare = 1e-12;  // smallest analytic cost, relative to the largest

struct Ratio {
  std::size_t profile;
  double bits, log_kl, log_ratio, relative_error;
};

// Mean logarithm of measured / analytic near `bits`, without the measured profile `without`.
std::optional<double> ratio_near(const std::vector<Ratio>& ratios, double bits, std::optional<std::size_t> without,
                                 const EstimateOptions& options) {
  double sum = 0.0, weights = 0.0;
  for (const Ratio& r : ratios) {
    if (without == r.profile) continue;
    const double distance = (bits - r.bits) / options.reach;
    // The exponent is bounded so that a single distant point still counts.
    const double weight = std::exp(-std::min(0.5 * distance * distance, 500.0)) /
                          (r.relative_error * r.relative_error + options.spread * options.spread);
    sum += weight * r.log_ratio;
    weights += weight;
  }
  if (weights == 0.0) return std::nullopt;
  return sum / weights;
}

}  // namespace

std::vector<double> estimated_kl(const std::vector<double>& analytic, const std::vector<MeasuredKl>& measured,
                                 int head_dim, const EstimateOptions& options) {
  const double largest = *std::max_element(analytic.begin(), analytic.end());
  const auto log_closed = [&](std::size_t i) {
    return largest > 0.0 ? std::log(std::max(analytic[i] / largest, kLeastShare)) : 0.0;
  };
  std::vector<Ratio> ratios;
  for (const MeasuredKl& m : measured) {
    const double kl = std::max(m.kl, kLeastKl);
    ratios.push_back({m.profile, profile_bits(latent_profiles()[m.profile], head_dim), std::log(kl),
                      std::log(kl) - log_closed(m.profile), std::min(m.error / kl, 1.0)});
  }
  std::vector<double> estimate;
  for (std::size_t i = 0; i < analytic.size(); ++i) {
    const auto own = std::find_if(ratios.begin(), ratios.end(), [&](const Ratio& r) { return r.profile == i; });
    const bool known = own != ratios.end();
    const double bits = profile_bits(latent_profiles()[i], head_dim);
    const std::optional<double> near = ratio_near(ratios, bits, known ? std::optional(i) : std::nullopt, options);
    const double shape = log_closed(i) + near.value_or(0.0);
    if (!known) {
      estimate.push_back(std::exp(shape));
      continue;
    }
    const double variance = options.spread * options.spread, noise = own->relative_error * own->relative_error;
    const double weight = near ? variance / (variance + noise) : 1.0;
    estimate.push_back(std::exp(weight * own->log_kl + (1.0 - weight) * shape));
  }
  return estimate;
}

}  // namespace oscar
