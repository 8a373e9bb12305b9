// The fit: from statistics of a model to a transform and clip ratios for each layer, with their predicted errors.
#pragma once

#include <cstdint>

#include "fit/fit_options.h"
#include "fit/fit_result.h"
#include "statistics/statistics.h"

namespace oscar {

// Default context length of a fit in tokens: the model's maximum, at most 131,072; 0 if the statistics do not allow a
// choice.
std::int64_t default_context(const Statistics& statistics);

// The number of times that on_step will be called.
std::int64_t fit_steps(const Statistics& statistics, const FitOptions& options);

// statistics: as check_statistics() accepts them. UsageError for options that contradict each other or the geometry;
// InputError for statistics that lack what the options need; NumericalError naming the tensor for a failed
// decomposition; InterruptedError.
FitResult fit(const Statistics& statistics, const FitOptions& options);

}  // namespace oscar
