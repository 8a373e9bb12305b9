#include "pipeline/fit/fit_outputs.h"

#include <system_error>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/json.h"
#include "base/log.h"
#include "bundle/curves.h"
#include "bundle/manifest.h"
#include "collect/collect_phases.h"
#include "fit/from_fit.h"
#include "transform/profile_allocation.h"

namespace oscar {
namespace {

[[noreturn]] void refuse_other(const fs::path& directory, const std::string& difference) {
  throw UsageError(directory.string() + ": holds a bundle of other statistics or options" + difference +
                   "; choose another output or pass --overwrite");
}

std::string difference_text(const std::string& what, const Json& there, const Json& here) {
  const auto text = [](const Json& value) {
    return value.is_null() ? std::string("nothing")
                           : printable(value.is_string() ? value.get<std::string>() : value.dump(-1, ' ', true));
  };
  return " (" + what + ": " + text(there) + " there, " + text(here) + " in this run)";
}

}  // namespace

void refuse_other_bundles(const FitRequest& r, const Statistics* statistics, const std::string& sha256) {
  const std::vector<fs::path> outputs = outputs_of(r);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!may_be_done(outputs[i], r)) continue;
    const Bundle bundle = load_bundle(outputs[i], false);
    Statistics unknown;
    unknown.head_dim = bundle.layers.front().head_dim;
    unknown.rope_dim = bundle.latent() ? 1 : 0;
    const Statistics& known = statistics != nullptr ? *statistics : unknown;
    FitOptions options = fit_options_for(r, known);
    if (!r.pareto.empty()) options.bits = r.pareto[i];
    Json wanted = fit_options_json(known, options);
    if (!r.form.empty()) wanted["for"] = r.form;
    wanted["encoder"] = to_string(options.encoder);
    wanted["windows"] = {r.windows.sink, r.windows.recent};
    Json found = bundle.provenance.value("options", Json::object());
    found["encoder"] = bundle.encoder;
    found["windows"] = {bundle.windows.sink, bundle.windows.recent};
    if (statistics == nullptr) {
      for (const char* key : {"metric", "clip", "context"}) wanted.erase(key);  // follow from the statistics
    }
    if (r.target.given()) {
      wanted["bits"] = found.value("bits", Json());
      wanted["target"] = r.target.kl_target();
    }
    if (bundle.provenance.contains("target")) found["target"] = bundle.provenance["target"].value("kl", Json());
    for (const char* key : {"for", "target"}) {
      if (found.contains(key) && !wanted.contains(key)) wanted[key] = nullptr;
    }
    for (const auto& [key, value] : wanted.items()) {
      if (found.value(key, Json()) != value)
        refuse_other(outputs[i], difference_text(key, found.value(key, Json()), value));
    }
    if (statistics == nullptr) continue;
    const Json record = bundle.provenance.value("statistics", Json::object()).value("sha256", Json());
    if (record != sha256) refuse_other(outputs[i], difference_text("sha256 of the statistics", record, sha256));
  }
}

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
    const auto fitted = [](Bundle of) {
      of.provenance.erase("measured");
      return manifest_to_json(of, {});
    };
    if (fitted(bundle) == fitted(load_bundle(directory))) {
      log_info("the bundle in " + directory.string() + " is complete");
      return;
    }
    refuse_other(directory, "");
  }
  if (curves) {
    save_bundle(bundle, curves->curves, directory, r.common.overwrite);
  } else {
    save_bundle(bundle, directory, r.common.overwrite);
  }
}

}  // namespace oscar
