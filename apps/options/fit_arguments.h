// The options of oscar-fit: definitions, defaults and refusals.
#pragma once

#include <string>

#include "apps/options/shared_options.h"
#include "pipeline/fit/fit_request.h"
#include "pipeline/fit/fit_target.h"

namespace oscar {

// A request on its way: the values of options, which complete_fit() turns into the rest of it.
struct FitArguments : FitRequest {
  std::string scope = "auto", clip = "auto", encoder = "auto", center = "auto", window_text = "64,256";
  bool method_given = false, far_pairs_given = false;
};

void add_fit_options(CLI::App& app, FitArguments& arguments);
void note_given_options(const CLI::App& app, FitArguments& arguments);  // call after parsing

// Checks the options together and completes the request. For a model instead of statistics, it reads the model's
// config.json. UsageError for what contradicts or has no effect.
FitRequest complete_fit(const CLI::App& app, FitArguments arguments);

// The options --target-kl, --target-ppl and --preset of oscar-fit.

void add_target_options(CLI::App& app, TargetArguments& arguments);

// UsageError for options that contradict a target, by their names. allocates: whether the method shares out bits.
void check_target(const CLI::App& app, const TargetArguments& arguments, const std::string& method, bool allocates,
                  bool uses_curves);

}  // namespace oscar
