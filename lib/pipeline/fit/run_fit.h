// oscar-fit: collect, measure widths, fit, save.
#pragma once

#include "pipeline/fit/fit_request.h"

namespace oscar {

// Runs the request, or under --dry-run prints its plan. Returns the exit code.
int run_fit(const FitRequest& request);

}  // namespace oscar
