// oscar-fit check: tests whether a bundle is still good for other traffic.
#pragma once

#include <string>

#include "pipeline/common/common_options.h"

namespace oscar {

struct CheckArguments {
  std::string bundle, statistics;
  double max_regret = 0.0;  // 0: no gate
};

// Prints the table or JSON. Returns 0, or 1 if the total regret exceeds --max-regret.
int run_check(const CheckArguments& arguments, bool json);

}  // namespace oscar
