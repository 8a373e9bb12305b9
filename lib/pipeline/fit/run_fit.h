// oscar-fit: collect, measure widths, fit, save.
#pragma once

#include "pipeline/fit/fit_listener.h"
#include "pipeline/fit/fit_request.h"

namespace oscar {

// Runs the request, or under --dry-run plans it.
void run_fit(const FitRequest& request, FitListener& listener);

}  // namespace oscar
