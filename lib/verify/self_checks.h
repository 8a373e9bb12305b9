// Checks of the measurement itself. Every report includes them, and a failed check fails the run.
#pragma once

#include <vector>

#include "report/report.h"
#include "verify/runner.h"

namespace oscar {

// null_run: BF16 against BF16 gives exactly KL 0.
// negative_control: naive2 is worse than the bundle's method.
// writer_reader: codes in the paged cache equal the reference codec's, and decode attention reads them correctly.
// prefill_decode: both paths give equal distributions within rounding, for methods that still follow the model.
// drift: KL of a candidate does not rise with position once most of a query's keys are quantized.
// prediction: a candidate's KL is near the prediction of its measured curves.
// The report marks the candidate rows. bfloat16: activations are BF16. gpu: the cache is on a GPU, whose kernel takes
// BF16 queries.
std::vector<SelfCheck> self_checks(const VerifyReport& report, const RunnerResult& run, bool bfloat16,
                                   bool gpu = false);

// Checks a bundle's KL against the prediction of its measured curves.
// Measured KL divided by predicted KL, for candidates with a prediction for this run's windows and about its context
// (up to a factor of two). Only prefill rows, which measure what the curves measure. The ratio farthest from 1 counts.
// Fails beyond a factor of 4 either way that two standard errors of the ratio do not explain. Sides are nearly additive
// (ratios of 1.0 to 1.5 were observed), and texts differ by less, but a short run scores too few tokens. Not applicable
// without a prediction, or for another context or other windows.
SelfCheck prediction_check(const VerifyReport& report);

}  // namespace oscar
