// Checks of the measurement itself; part of every report, and a failed one fails the run.
#pragma once

#include <string>
#include <vector>

#include "report/report.h"
#include "verify/runner.h"

namespace oscar {

// null_run: BF16 against BF16 gives KL 0 exactly. negative_control: naive2 is worse than the bundle's method.
// writer_reader: codes in the paged cache are those of the reference codec, and decode attention reads them back.
// prefill_decode: both paths give the same distributions, within rounding; for methods that still follow the model.
// drift: KL of a judged method does not climb with position, once most of what a query sees is coded.
// prediction: a judged method costs about what its measured curves promise (prediction_check.h).
// Which rows are judged stands in the report. bfloat16: activations are BF16. gpu: the cache is on a GPU, whose kernel
// takes queries in BF16.
std::vector<SelfCheck> self_checks(const VerifyReport& report, const RunnerResult& run, bool bfloat16,
                                   bool gpu = false);

}  // namespace oscar
