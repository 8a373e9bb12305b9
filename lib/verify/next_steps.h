// Suggests steps after a failed gate, from the report and the bundle's files.
#pragma once

#include <string>
#include <vector>

#include "report/report.h"

namespace oscar {

// For the first candidate row that fails, the most likely cause first. Empty if nothing failed, or if only a longer
// text is needed (GateResult::reason says so). One line each, without a period.
std::vector<std::string> next_steps(const VerifyReport& report);

}  // namespace oscar
