// Latent attention caches one row per token, which is key and value (model/latent_attention.h). So one transform serves
// both sides. It is fitted to the sum of an error's cost as a key (metric of W_UK) and as a value (metric of W_UV and
// W_O).
#pragma once

#include "fit/fit_options.h"
#include "statistics/statistics.h"

namespace oscar {

// UsageError for options that would treat keys and values differently, if the statistics are of latent attention.
void check_latent_options(const Statistics& statistics, const FitOptions& options);

// Statistics of latent attention whose metric of keys is the sum. Metrics of pairs outside the windows have one unit
// (energy of the layer's output) and are added. Q^T Q and W_O^T W_O do not, so they are weighted such that each is half
// of the cost of the rows' covariance. The target of method oscar is the sum, too.
Statistics summed_statistics(const Statistics& statistics, const FitOptions& options);

}  // namespace oscar
