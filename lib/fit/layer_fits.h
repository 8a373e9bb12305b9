// The fits of all layers, by the kind of their method.
#pragma once

#include "fit/fit_options.h"
#include "fit/fit_result.h"
#include "statistics/statistics.h"

namespace oscar {

// The fit of the orthogonal methods: eigenvectors of targets, and methods without data.
// Adds the layers to an empty result: transforms without clips, with the means that `options.center` selects, and their
// captured energy. All-zero targets get a warning and the Hadamard matrix. NumericalError naming the target for a
// failed decomposition.
void fit_orthogonal(const Statistics& statistics, const FitOptions& options, FitResult& result);

// The fit of the methods balanced and waterfill over all layers: transforms, and for layout `blocks` the group bit
// widths.
// Adds the layers to an empty result: transforms without clips, and their spectra. Widths come from the options or from
// the analytic allocation (waterfill.h). Adds warnings about heads (metric_fit.h), about keys that are mostly a mean
// before RoPE, and about statistics that lack the moments for these methods. NumericalError naming the head for a
// failed decomposition.
void fit_balanced(const Statistics& statistics, const FitOptions& options, FitResult& result);

}  // namespace oscar
