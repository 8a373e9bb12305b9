#include "pipeline/fit_outputs.h"

#include <system_error>

#include "base/errors.h"
#include "base/json.h"
#include "base/log.h"
#include "bundle/curves.h"
#include "bundle/manifest.h"
#include "collect/collect_phases.h"
#include "transform/profile_allocation.h"

namespace oscar {

bool may_be_done(const fs::path& output, const FitRequest& r) {
  std::error_code ec;
  return r.curves.resume && !r.common.overwrite && fs::is_regular_file(output / kManifestName, ec);
}

std::string finished_curves(const FitRequest& r, const std::vector<fs::path>& outputs) {
  for (const fs::path& output : outputs) {
    const fs::path file = output / kCurvesName;
    std::error_code ec;
    if (!may_be_done(output, r) || !fs::exists(file, ec) || fs::exists(curve_directory(r.curves, r.common), ec))
      continue;
    const Curves curves = curves_from_json(read_json(file), file.string());
    const bool same = (r.curves.context == 0 || curves.context == r.curves.context) &&
                      (r.curves.sequences == 0 || curves.sequences == r.curves.sequences);
    if (same) return file.string();
  }
  return {};
}

fs::path pareto_directory(const FitRequest& r, double bits) {
  return fs::path(r.common.output) / ("bits-" + bits_text(bits));
}

std::vector<fs::path> outputs_of(const FitRequest& r) {
  std::vector<fs::path> outputs;
  for (const double bits : r.pareto) outputs.push_back(pareto_directory(r, bits));
  if (r.pareto.empty()) outputs.push_back(r.common.output);
  return outputs;
}

void save_fitted(const Bundle& bundle, const std::optional<MeasuredCurves>& curves, const fs::path& directory,
                 const FitRequest& r) {
  const Timeline::Phase saving(r.fit.timeline, phase::kSaving);
  if (may_be_done(directory, r)) {
    if (manifest_to_json(bundle, {}) == manifest_to_json(load_bundle(directory), {})) {
      log_info("the bundle in " + directory.string() + " is complete");
      return;
    }
    throw UsageError(directory.string() +
                     ": holds a bundle of other statistics or options; choose another output or pass --overwrite");
  }
  if (curves) {
    save_bundle(bundle, curves->curves, directory, r.common.overwrite);
  } else {
    save_bundle(bundle, directory, r.common.overwrite);
  }
}

}  // namespace oscar
