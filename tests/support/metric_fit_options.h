// Options of fits to made rows, which look at transforms and widths alone: each head on its own, nothing clipped.
#pragma once

#include <string>

#include "fit/fit_options.h"

namespace oscar {

inline FitOptions metric_fit_options(const std::string& method) {
  FitOptions o;
  o.method = method;
  o.scope = Scope::kHead;
  o.value_target = ValueTarget::kOutput;
  o.clip = ClipMode::kNone;
  o.encoder = Encoder::kSearch;
  o.center = Center::kMean;
  return o;
}

}  // namespace oscar
