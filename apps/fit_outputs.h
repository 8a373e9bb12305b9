// Where oscar-fit writes its bundles, and what an interrupted run may have left there.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/fit_curves.h"
#include "apps/options/fit_arguments.h"
#include "bundle/bundle.h"

namespace oscar {

// With --resume an output may be what an earlier run left that was stopped behind its last step.
bool may_be_done(const fs::path& output, const FitArguments& a);
// The curves that such a run left in one of its bundles; empty where there are none, or none that this run would make.
std::string finished_curves(const FitArguments& a, const std::vector<fs::path>& outputs);
// Of one budget of --pareto.
fs::path pareto_directory(const FitArguments& a, double bits);
// The bundles that will be made.
std::vector<fs::path> outputs_of(const FitArguments& a);
// A run that was stopped behind its last step left a bundle: the same is made again and found to be there. UsageError
// where another one is.
void save_fitted(const Bundle& bundle, const std::optional<MeasuredCurves>& curves, const fs::path& directory,
                 const FitArguments& a);

}  // namespace oscar
