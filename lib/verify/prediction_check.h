// Checks a bundle's KL against the prediction of its measured curves.
#pragma once

#include "report/report.h"

namespace oscar {

// Measured KL divided by predicted KL, for candidates with a prediction for this run's windows and about its context
// (up to a factor of two). Only prefill rows, which measure what the curves measure. The ratio farthest from 1 counts.
// Fails beyond a factor of 4 either way that two standard errors of the ratio do not explain. Sides are nearly additive
// (ratios of 1.0 to 1.5 were observed), and texts differ by less, but a short run scores too few tokens. Not applicable
// without a prediction, or for another context or other windows.
SelfCheck prediction_check(const VerifyReport& report);

}  // namespace oscar
