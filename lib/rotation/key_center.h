// Which layers store their keys without the mean of keys before RoPE (model/rope_phases.h), in place of the mean of
// keys as they are cached.
#pragma once

#include <cstdint>
#include <vector>

#include "rotation/fit_options.h"
#include "statistics/statistics.h"

namespace oscar {

// One rotary embedding over all channels, in every layer, known to the statistics: what a rotated mean needs.
bool can_rotate_means(const Statistics& statistics);

// [L]: what keys weigh in a layer's metric, sum of covariance x metric over its heads, without the mean before RoPE
// over that without the mean of cached keys: below 1 by as much as the first takes away what the second cannot.
std::vector<double> rotated_mean_gains(const Statistics& statistics, const FitOptions& options);

// [L]: Center::kRope: all; kAuto: where the statistics, the layout and the context allow it and the ratio above is
// below kWorthRotating; else none. `blocks`: the layout of the pages, the only one whose fast kernel has the term.
std::vector<bool> layers_with_rotated_mean(const Statistics& statistics, const FitOptions& options, bool blocks);

}  // namespace oscar
