// The fit of the orthogonal methods: eigenvectors of targets, and methods without data.
#pragma once

#include "fit/fit_options.h"
#include "fit/fit_result.h"
#include "statistics/statistics.h"

namespace oscar {

// Adds the layers to an empty result: transforms without clips, with the means that `options.center` selects, and their
// captured energy. All-zero targets get a warning and the Hadamard matrix. NumericalError naming the target for a
// failed decomposition.
void fit_orthogonal(const Statistics& statistics, const FitOptions& options, FitResult& result);

}  // namespace oscar
