// KL of every width profile of a side, estimated from a few measured profiles and the analytic costs of all profiles.
//
// The analytic cost orders the profiles of a side well. It is off by a factor that differs between sides and drifts
// with bits. Measured points are unbiased but noisy, because KL is concentrated on few tokens. With l = ln(measured /
// analytic):
//   g(b)  = mean of l over the measured profiles, weighted by exp(-(b - b_i)^2 / 2 reach^2) / (r_i^2 + spread^2)
//   ln KL = ln analytic + g                                for a profile that was not measured,
//   ln KL = w ln measured + (1 - w) (ln analytic + g)      otherwise, with w = spread^2 / (spread^2 + r^2)
//                                                          and g without the point itself;
// b are bits, r is the relative standard error. So a point counts by its certainty, and a lucky measurement does not
// get a profile chosen.
#pragma once

#include <cstddef>
#include <vector>

namespace oscar {

struct MeasuredKl {
  std::size_t profile = 0;  // index into latent_profiles(), which begin with falling_profiles()
  double kl = 0.0;          // nats
  double error = 0.0;       // standard error; 0: the point is taken as exact
};

struct EstimateOptions {
  double spread = 0.3;  // assumed error of the analytic costs' shape, in logarithms
  double reach = 0.6;   // distance in bits over which the factor is about constant
};

// analytic: costs of the first profiles of latent_profiles() in any unit, not negative. Needs at least one measured
// profile. Returns as many in nats, finite, not negative.
std::vector<double> estimated_kl(const std::vector<double>& analytic, const std::vector<MeasuredKl>& measured,
                                 int head_dim, const EstimateOptions& options = {});

}  // namespace oscar
