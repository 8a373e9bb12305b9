// Group bit widths of every layer from the measured KL of each side.
#pragma once

#include <vector>

#include "bundle/curves.h"

namespace oscar {

// Group bit widths of every layer within a budget of bits per element, scale bytes included.
struct CurveAllocation {
  std::vector<Widths> key, value;  // [L]
  PredictedKl predicted;
};

// Least total of the analytic costs; curve_estimate.h turns it into `predicted`. Needs analytic costs.
CurveAllocation allocate_analytic(const Curves& curves, double bits);

// Least total KL: over the estimates of all profiles (curve_estimate.h), or only over the measured points in curves
// without analytic costs. `predicted` is the sum of these KLs.
CurveAllocation allocate_estimates(const Curves& curves, double bits);

// The widths to use. If end-to-end KL was measured at this budget, they are the analytic allocation, unless the
// measured allocation has significantly lower KL. Significant is more than twice the standard error over eight
// sequences, of the difference or of the ratio's logarithm, and more for fewer. If a few sequences cannot separate the
// two, moments of all prompts decide, since they generalize to other text. `predicted` is then the measured end-to-end
// KL. Without such a measurement: allocate_estimates(). All three functions are exact (allocate_profiles()) and throw
// its errors.
CurveAllocation allocate_curves(const Curves& curves, double bits);

}  // namespace oscar
