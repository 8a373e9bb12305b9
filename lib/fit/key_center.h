// The moments that a side is fitted to, with the choice between two means of keys: the mean before RoPE
// (model/rope_phases.h), or the mean of cached keys.
#pragma once

#include <vector>

#include "fit/fit_options.h"
#include "fit/side_moments.h"
#include "statistics/statistics.h"

namespace oscar {

// True if all layers share one RoPE over all channels, known to the statistics; rotated means require it.
bool can_rotate_means(const Statistics& statistics);

// [L]: a ratio of key weights in a layer's metric, each the sum of covariance x metric over its heads. The numerator is
// without the mean before RoPE, the denominator without the mean of cached keys (`plain`). A ratio below 1 means that
// centering before RoPE removes more.
std::vector<double> rotated_mean_gains(const Statistics& statistics, const FitOptions& options,
                                       const std::vector<SideMoments>& plain);

// [L], computed once for a fit. The mean of keys is that before RoPE with Center::kRope in all layers, with kAuto in
// layers for which the statistics, the layout and the context allow it and the ratio above is below kWorthRotating.
// `blocks`: the page layout, the only one whose fast kernel has the term.
std::vector<SideMoments> fitted_moments(const Statistics& statistics, const FitOptions& options, Side side,
                                        bool blocks);

}  // namespace oscar
