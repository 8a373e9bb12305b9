// Does a bundle cost what its measured curves promised?
#pragma once

#include "report/report.h"

namespace oscar {

// Measured over predicted KL of the judged methods whose bundle carries a prediction for the windows and about the
// context (up to a factor of two) of this run; the farthest from 1 counts, and fails beyond a factor of 4 either way
// that two standard errors of the ratio do not explain: sides are nearly additive (1.0 to 1.5 was seen), and texts
// differ by less, but a short run scores too few tokens to tell. Prefill rows only, which measure what the curves
// measure. Not applicable without a prediction, or for another context or other windows.
SelfCheck prediction_check(const VerifyReport& report);

}  // namespace oscar
