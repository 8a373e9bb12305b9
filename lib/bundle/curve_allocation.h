// Widths of every layer from measured curves.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "bundle/curves.h"

namespace oscar {

// Widths of every layer within a budget of bits for each element, scale bytes included.
struct CurveAllocation {
  std::vector<Widths> key, value;  // [L]
  PredictedKl predicted;
};

// KL of these widths of a side: what allocate_estimates() adds up. Nothing for widths that were not measured, in curves
// without a closed form.
std::optional<double> estimate_of(const SideCurve& curve, const Widths& widths, int head_dim);

// Least total of the closed forms; predicted is what curve_estimate.h makes of it. Needs closed forms.
CurveAllocation allocate_closed_form(const Curves& curves, double bits);

// Least total KL: over the estimates of all profiles (curve_estimate.h), or over the measured points alone in curves
// that have no closed form. predicted is the sum of these numbers.
CurveAllocation allocate_estimates(const Curves& curves, double bits);

// The widths to use. Where wholes were measured at this budget, the closed form's, unless the KL of the curves' is
// lower by more than twice the standard error of the difference over eight sequences, and more of fewer: what a few
// sequences cannot tell apart is decided by moments of all prompts, which carry over to other text. The whole's KL is
// predicted then. Without a whole, allocate_estimates(). All three are exact (allocate_profiles()), whose errors they
// throw.
CurveAllocation allocate_curves(const Curves& curves, double bits);

}  // namespace oscar
