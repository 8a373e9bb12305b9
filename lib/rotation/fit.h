// The fit: statistics of a model -> a transform and clip ratios for each layer, with what they are predicted to do.
#pragma once

#include <cstdint>

#include "rotation/fit_options.h"
#include "rotation/fit_result.h"
#include "statistics/statistics.h"

namespace oscar {

// Tokens of context that a fit serves where nothing else is said: the model's maximum, at most 131,072; 0 where the
// statistics do not allow to choose.
std::int64_t default_context(const Statistics& statistics);

// How often on_step will be called.
std::int64_t fit_steps(const Statistics& statistics, const FitOptions& options);

// UsageError for options that contradict each other or the geometry; InputError for statistics that cannot be used;
// NumericalError naming the tensor for NaN, infinity or a failed decomposition; InterruptedError.
FitResult fit(const Statistics& statistics, const FitOptions& options);

}  // namespace oscar
