#include "pipeline/fit/fit_widths.h"

#include "base/errors.h"
#include "base/json.h"
#include "base/progress.h"
#include "bundle/curve_allocation.h"
#include "export/served_form.h"
#include "fit/fit.h"
#include "fit/fit_phases.h"
#include "fit/from_fit.h"
#include "pipeline/fit/fit_outputs.h"

namespace oscar {
namespace {

std::string hash_of(const FitInput& input) {
  const Timeline::Phase reading(input.options.timeline, phase::kStatistics);
  return input.sha256.get();
}

Fitted fitted_with(const FitRequest& r, const FitInput& input, FitOptions options) {
  Fitted fitted;
  Progress progress("fit", static_cast<std::uint64_t>(fit_steps(input.statistics, options)), "steps");
  options.on_step = [&] { progress.advance(1); };
  fitted.result = fit(input.statistics, options);
  progress.finish();
  options.on_step = nullptr;
  const FitSource source{fs::path(r.statistics).filename().string(), hash_of(input), tool_version(), r.text_hashes,
                         r.check_rows};
  fitted.bundle = bundle_from_fit(input.statistics, options, fitted.result, r.windows, source);
  if (!r.form.empty()) {
    fitted.bundle.provenance["options"]["for"] = r.form;
    served_form(fitted.bundle, r.form);  // refuses head sizes that the format cannot carry
  }
  return fitted;
}

// Curves of a finished run are taken for this one if they were measured on the same text in the same dtype.
void require_same_text(const std::string& file, const FitRequest& r, const FitInput& input,
                       const std::optional<CurveText>& text) {
  const Curves found = curves_from_json(read_json(file), file);
  const Checkpoint checkpoint = open_model_of(input.statistics, r.common);
  const CurveText now = text ? *text : load_curve_text(checkpoint, input.options.device, r.windows, r.curves);
  const std::string dtype = curve_decoding(r.curves, r.common, checkpoint.config(), input.options.device).dtype_name();
  const bool same = found.text.value("sha256", Json()) == now.record.value("sha256", Json());
  if (same && found.dtype == dtype) return;
  throw UsageError(file + ": these curves of a finished run were measured on another " + (same ? "dtype" : "text") +
                   "; choose another output or pass --overwrite");
}

}  // namespace

std::optional<MeasuredCurves> measure_widths(const FitRequest& r, const FitInput& input,
                                             const std::optional<CurveText>& text) {
  CurveArguments curves = r.curves;
  // A dry run does not run the model, so its table shows the analytic allocation.
  if (r.fit.allocate != "measured" || (r.common.dry_run && curves.file.empty())) return {};
  const Timeline::Phase measuring(input.options.timeline, phase::kCurves);
  if (curves.file.empty()) {
    curves.file = finished_curves(r, outputs_of(r));
    if (!curves.file.empty()) require_same_text(curves.file, r, input, text);
  }
  curves.loaded = text;
  return curves_for(input.statistics, hash_of(input), input.options, r.windows, r.common, curves,
                    budgets_of(r, input.options.bits), r.text_hashes);
}

Fitted fit_bundle(const FitRequest& r, const FitInput& input, const std::optional<MeasuredCurves>& curves,
                  const std::optional<TargetChoice>& target) {
  FitOptions options = input.options;
  std::optional<PredictedKl> predicted;
  if (target) options.bits = target->bits();
  if (curves) {
    const CurveAllocation widths = allocate_curves(curves->curves, options.bits);
    options.key_profiles = widths.key;
    options.value_profiles = widths.value;
    predicted = target ? target->rows[target->chosen].predicted : widths.predicted;
  }
  Fitted fitted = fitted_with(r, input, std::move(options));
  if (predicted) add_curves(fitted.bundle, curves->curves, *predicted);
  if (target) record_target(fitted.bundle, r.target, *target);
  return fitted;
}

}  // namespace oscar
