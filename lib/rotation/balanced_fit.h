// The fit of the methods balanced and waterfill over all layers: transforms, and for layout `blocks` the widths.
#pragma once

#include "rotation/fit_options.h"
#include "rotation/fit_result.h"
#include "statistics/statistics.h"

namespace oscar {

// Adds the layers to an empty result: transforms without clips, and their spectra. Widths are those of the options, or
// those of the closed form (waterfill.h). Warns of heads (metric_fit.h), of keys that are mostly a mean before RoPE,
// and of statistics that lack what these methods are fitted to. NumericalError naming the head for a failed
// decomposition.
void fit_balanced(const Statistics& statistics, const FitOptions& options, FitResult& result);

}  // namespace oscar
