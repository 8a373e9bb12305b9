// What a fitted bundle is worth to who serves it: memory by context, and the layers that carry most of the error.
#pragma once

#include <string>

#include "bundle/bundle.h"
#include "rotation/fit.h"

namespace oscar {

// Lines of at most 100 columns: "memory ..." and, where errors were predicted, "worst ...".
std::string fit_summary(const Bundle& bundle, const FitResult& result);

}  // namespace oscar
