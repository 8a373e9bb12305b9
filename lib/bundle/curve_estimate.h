// KL of every width profile of a side, from the few that were measured and the closed form of all.
//
// The closed form orders the profiles of a side well and is off by a factor that differs between sides and drifts with
// bits; measured points are right and noisy, because KL lives on few tokens. With l = ln(measured / closed form):
//   g(b)  = mean of l over the measured profiles, weighted by exp(-(b - b_i)^2 / 2 reach^2) / (r_i^2 + spread^2)
//   ln KL = ln closed + g                                                for a profile that was not measured,
//   ln KL = w ln measured + (1 - w) (ln closed + g), w = spread^2 / (spread^2 + r^2), g without the point itself, else;
// b are bits, r is the relative standard error. So a point counts by what is known of it, and a profile is not chosen
// for being measured luckily. docs/curves.md has what this is worth.
#pragma once

#include <cstddef>
#include <vector>

namespace oscar {

struct MeasuredKl {
  std::size_t profile = 0;  // index into falling_profiles()
  double kl = 0.0;          // nats
  double error = 0.0;       // standard error; 0: the point is taken as it is
};

struct EstimateOptions {
  double spread = 0.3;  // of the closed form's shape, in logarithms
  double reach = 0.6;   // bits over which the ratio is one
};

// closed_form: [35], in any unit, not negative. Needs a measured profile. Returns [35] in nats, finite, not negative.
std::vector<double> estimated_kl(const std::vector<double>& closed_form, const std::vector<MeasuredKl>& measured,
                                 int head_dim, const EstimateOptions& options = {});

}  // namespace oscar
