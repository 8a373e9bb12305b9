// Chooses the layers that store their keys without the mean of keys before RoPE (model/rope_phases.h), instead of the
// mean of cached keys.
#pragma once

#include <cstdint>
#include <vector>

#include "fit/fit_options.h"
#include "statistics/statistics.h"

namespace oscar {

// True if all layers share one RoPE over all channels, known to the statistics; rotated means require it.
bool can_rotate_means(const Statistics& statistics);

// [L]: a ratio of key weights in a layer's metric, each the sum of covariance x metric over its heads. The numerator is
// without the mean before RoPE, the denominator without the mean of cached keys. A ratio below 1 means that centering
// before RoPE removes more.
std::vector<double> rotated_mean_gains(const Statistics& statistics, const FitOptions& options);

// [L]: Center::kRope: all. kAuto: layers for which the statistics, the layout and the context allow it and the ratio
// above is below kWorthRotating. Else none. `blocks`: the page layout, the only one whose fast kernel has the term.
std::vector<bool> layers_with_rotated_mean(const Statistics& statistics, const FitOptions& options, bool blocks);

}  // namespace oscar
