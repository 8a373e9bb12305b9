// Does a bundle cost what its measured curves promised?
#pragma once

#include <string>
#include <vector>

#include "bundle/curves.h"
#include "verify/report.h"

namespace oscar {

// What the bundle behind a row of the report predicts.
struct RowPrediction {
  std::string row;  // id of its methods
  PredictedKl predicted;
};

// Measured over predicted KL of the judged methods whose bundle predicts it for the windows and about the
// context (up to a factor of two) of this run; the farthest from 1 counts, and fails beyond a factor of 4 either way:
// sides are nearly additive (1.0 to 1.5 was seen), and texts differ by less. Prefill rows only, which measure what the
// curves measure. Not applicable without a prediction, or for another context or other windows.
SelfCheck prediction_check(const VerifyReport& report, const std::vector<RowPrediction>& predictions);

}  // namespace oscar
