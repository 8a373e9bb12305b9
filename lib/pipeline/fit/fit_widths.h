// The fit itself: measured curves, if widths are allocated by them, and the bundle of one budget.
#pragma once

#include <future>
#include <optional>
#include <string>

#include "curves/measure_curves.h"
#include "fit/fit_result.h"
#include "pipeline/fit/fit_request.h"
#include "pipeline/fit/fit_target.h"

namespace oscar {

struct Fitted {
  Bundle bundle;
  FitResult result;
};

// Hash of the statistics file; it takes as long as fitting a large model, and is computed beside it.
using FileHash = std::shared_future<std::string>;

// What the fits of a run share.
struct FitInput {
  const Statistics& statistics;
  FileHash sha256;
  FitOptions options;  // fit_options_for(), and the device
};

// The curves that allocate widths: measured, or read from an earlier bundle. nullopt if the request has none, and in a
// dry run without a file. text: of the curves, if it was already read.
std::optional<MeasuredCurves> measure_widths(const FitRequest& request, const FitInput& input,
                                             const std::optional<CurveText>& text);

// The bundle of input.options.bits; with a target, of the budget that it chose. Its widths follow from `curves`, or
// from the analytic allocation.
Fitted fit_bundle(const FitRequest& request, const FitInput& input, const std::optional<MeasuredCurves>& curves,
                  const std::optional<TargetChoice>& target = {});

}  // namespace oscar
