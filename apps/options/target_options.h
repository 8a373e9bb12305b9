// The options --target-kl, --target-ppl and --preset of oscar-fit.
#pragma once

#include <string>

#include "apps/options/shared_options.h"
#include "pipeline/fit/fit_target.h"

namespace oscar {

void add_target_options(CLI::App& app, TargetArguments& arguments);

// UsageError for options that contradict a target, by their names. allocates: whether the method shares out bits.
void check_target(const CLI::App& app, const TargetArguments& arguments, const std::string& method, bool allocates,
                  bool uses_curves);

}  // namespace oscar
