// Facts about a fitted bundle for serving: memory by context, and the layers with the largest share of the error.
#pragma once

#include <string>

#include "bundle/bundle.h"
#include "fit/fit.h"

namespace oscar {

// Lines of at most 100 columns: "memory ..." and, if errors were predicted, "worst ...".
std::string fit_summary(const Bundle& bundle, const FitResult& result);

}  // namespace oscar
