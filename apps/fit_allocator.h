// oscar-fit --allocate with an allocator of another paper (rotation/allocators.h): whether it has what it needs, and
// its sensitivities.
#pragma once

#include <optional>
#include <string>

#include "apps/common_options.h"
#include "apps/fit_curves.h"
#include "rotation/allocators.h"
#include "rotation/fit_options.h"

namespace oscar {

// The allocator that is asked for; null for auto, closed and measured. UsageError for a method without a budget, and
// where the model or the text that it needs is not given.
const AllocatorRow* asked_allocator(const CurveArguments& arguments, const CommonOptions& common,
                                    const std::string& method);

// What it shares bits out by, for a fit with these options. InputError where the statistics are of another model.
Sensitivities sensitivities_for(const AllocatorRow& allocator, const Statistics& statistics, const FitOptions& options,
                                const CommonOptions& common);

// What chooses the widths, where the closed form does not: measured curves, or an allocator with its sensitivities.
struct WidthSource {
  std::optional<MeasuredCurves> measured;
  const AllocatorRow* allocator = nullptr;
  Sensitivities sensitivities;
};

// Gives the fit the widths of its budget, where `source` has some. Returns what curves predict of them.
std::optional<PredictedKl> set_widths(const WidthSource& source, std::int64_t head_dim, FitOptions& options);

// For --help: ids, one line each.
std::string allocator_help();

}  // namespace oscar
