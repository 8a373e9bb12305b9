// Sensitivities that follow from statistics and a fit to them, for the allocators of other papers (allocators.h).
#pragma once

#include "rotation/allocators.h"
#include "rotation/fit_result.h"
#include "statistics/statistics.h"

namespace oscar {

// fit: of method waterfill to these statistics. Its transforms make the covariance of rows and the metric of their
// errors one diagonal lambda; so a channel whose row is lost costs lambda^2 in the layer's output.

// AATC: lambda^2 of every channel, in units of the layer's output: nothing is divided by the residual stream.
// [places][4 S d/4], block by block; S matrices of the side.
Sensitivities output_variances(const FitResult& fit);

// SPECTRA: how much of the rows' own energy a channel of each block carries, on average: what a row loses in the
// model's basis, whatever queries or W_O read. [places][4 S].
Sensitivities row_variances(const FitResult& fit);

// RateQuant: first-order loss of a side without bits, tr(covariance x metric) over residual_power(), summed over heads.
// The metric is the fit's: far pairs by default, which all statistics have and which is a gradient of the layer's
// output; with --metric kl the squared gradient of the model's log probability itself. [places][1].
Sensitivities side_losses(const Statistics& statistics, const FitResult& fit);

// Those of an allocator with input kStatistics. std::invalid_argument for another.
Sensitivities fit_sensitivities(const AllocatorRow& allocator, const Statistics& statistics, const FitResult& fit);

}  // namespace oscar
