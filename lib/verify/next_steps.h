// What to do about a failed gate, from what the report and the bundle's files know.
#pragma once

#include <string>
#include <vector>

#include "report/report.h"

namespace oscar {

// Of the first judged row that fails, the likeliest cause first; empty where nothing failed, or where a longer text is
// all that is missing (GateResult::reason says so). One line each, without a full stop.
std::vector<std::string> next_steps(const VerifyReport& report);

}  // namespace oscar
