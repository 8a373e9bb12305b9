// The bundles that oscar-fit writes, and the remains of an interrupted run.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bundle/bundle.h"
#include "pipeline/fit/fit_request.h"
#include "statistics/statistics.h"

namespace oscar {

// With --resume, an output may come from an earlier run that was stopped after its last step.
bool may_be_done(const fs::path& output, const FitRequest& r);
// UsageError if the output holds a bundle that this run cannot end with: called before and after the statistics are
// read (null: before), so that nothing is measured in vain. sha256: of the statistics.
void refuse_other_bundles(const FitRequest& r, const Statistics* statistics, const std::string& sha256);
// The curves that such a run left in one of its bundles. Empty if there are none, or if this run would not make them.
std::string finished_curves(const FitRequest& r, const std::vector<fs::path>& outputs);
// The directory for one budget of --pareto.
fs::path pareto_directory(const FitRequest& r, double bits);
// The bundles that will be made.
std::vector<fs::path> outputs_of(const FitRequest& r);
// Saves a bundle. If a run was stopped after its last step, the same bundle already exists and is kept. UsageError if a
// different bundle exists.
void save_fitted(const Bundle& bundle, const std::optional<MeasuredCurves>& curves, const fs::path& directory,
                 const FitRequest& r);

}  // namespace oscar
