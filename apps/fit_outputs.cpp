#include "apps/fit_outputs.h"

#include <system_error>

#include "base/errors.h"
#include "base/json.h"
#include "base/log.h"
#include "bundle/curves.h"
#include "bundle/manifest.h"
#include "collect/collect_phases.h"
#include "transform/profile_allocation.h"

namespace oscar {

bool may_be_done(const fs::path& output, const FitArguments& a) {
  std::error_code ec;
  return a.curves.resume && !a.common.overwrite && fs::is_regular_file(output / kManifestName, ec);
}

std::string finished_curves(const FitArguments& a, const std::vector<fs::path>& outputs) {
  for (const fs::path& output : outputs) {
    const fs::path file = output / kCurvesName;
    std::error_code ec;
    if (!may_be_done(output, a) || !fs::exists(file, ec) || fs::exists(curve_directory(a.curves, a.common), ec))
      continue;
    const Curves curves = curves_from_json(read_json(file), file.string());
    const bool same =
        curves.context == a.curves.context && (a.curves.sequences == 0 || curves.sequences == a.curves.sequences);
    if (same) return file.string();
  }
  return {};
}

fs::path pareto_directory(const FitArguments& a, double bits) {
  return fs::path(a.common.output) / ("bits-" + bits_text(bits));
}

std::vector<fs::path> outputs_of(const FitArguments& a) {
  std::vector<fs::path> outputs;
  for (const double bits : a.pareto) outputs.push_back(pareto_directory(a, bits));
  if (a.pareto.empty()) outputs.push_back(a.common.output);
  return outputs;
}

void save_fitted(const Bundle& bundle, const std::optional<MeasuredCurves>& curves, const fs::path& directory,
                 const FitArguments& a) {
  const Timeline::Phase saving(a.fit.timeline, phase::kSaving);
  if (may_be_done(directory, a)) {
    if (manifest_to_json(bundle, {}) == manifest_to_json(load_bundle(directory), {})) {
      log_info("the bundle in " + directory.string() + " is complete");
      return;
    }
    throw UsageError(directory.string() +
                     ": holds a bundle of other statistics or options; choose another output or pass --overwrite");
  }
  if (curves) {
    save_bundle(bundle, curves->curves, directory, a.common.overwrite);
  } else {
    save_bundle(bundle, directory, a.common.overwrite);
  }
}

}  // namespace oscar
