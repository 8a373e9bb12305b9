// oscar-fit --allocate with an allocator of another paper (rotation/allocators.h): whether it has what it needs, and
// its sensitivities.
#pragma once

#include <optional>
#include <string>

#include "apps/fit_curves.h"
#include "apps/options/common_options.h"
#include "base/json.h"
#include "rotation/allocators.h"
#include "rotation/fit_options.h"

namespace oscar {

// The allocator that is asked for; null for auto, closed and measured. UsageError for a method without a budget, and
// where the model or the text that it needs is not given.
const AllocatorRow* asked_allocator(const CurveArguments& arguments, const CommonOptions& common,
                                    const std::string& method);

// What chooses the widths, where the closed form does not: measured curves, or an allocator with its sensitivities.
struct WidthSource {
  std::optional<MeasuredCurves> measured;
  const AllocatorRow* allocator = nullptr;
  Sensitivities sensitivities;
  Json text_hashes = Json::object();  // of the text that they were taken from (Curves of bundle/curves.h); empty: none
};

// An allocator and what it shares bits out by, for a fit with these options. InputError where the statistics are of
// another model, and as load_curve_text().
WidthSource allocator_source(const AllocatorRow& allocator, const Statistics& statistics, const FitOptions& options,
                             const CacheWindows& windows, const CommonOptions& common, const CurveArguments& arguments);

// Gives the fit the widths of its budget, where `source` has some. Returns what curves predict of them.
std::optional<PredictedKl> set_widths(const WidthSource& source, std::int64_t head_dim, FitOptions& options);

// For --help: ids, one line each.
std::string allocator_help();

}  // namespace oscar
