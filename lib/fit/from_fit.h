// The result of a fit as a bundle, with its provenance and report.
#pragma once

#include "bundle/bundle.h"
#include "fit/fit_options.h"
#include "fit/fit_result.h"
#include "statistics/statistics.h"

namespace oscar {

struct FitSource {
  std::string statistics_name;  // file name, without its folder
  std::string statistics_sha256;
  std::string tool_version;
  bool text_hashes = true;  // copy the statistics' hashes of the calibration text into the bundle
  bool check_rows = false;  // and rows for the self-check of engines
};

// The options in the form that the provenance records.
Json fit_options_json(const Statistics& statistics, const FitOptions& options);

Bundle bundle_from_fit(const Statistics& statistics, const FitOptions& options, const FitResult& result,
                       const CacheWindows& windows, const FitSource& source);

}  // namespace oscar
