// oscar-fit --model without statistics: first collects them, from prompts or self-generated calibration data, and keeps
// them beside the bundle.
#pragma once

#include <optional>

#include "pipeline/fit/fit_curves.h"
#include "pipeline/fit/fit_listener.h"
#include "pipeline/fit/fit_text.h"

namespace oscar {

// The statistics file beside the bundle: "bundle.statistics.safetensors".
fs::path statistics_beside(const std::string& output);

class ModelRun {
 public:
  // Opens the model, chooses device and dtype, and completes the options of collecting. `work_dir`: from --work-dir, or
  // empty; each part of the run has a folder in it. UsageError for existing outputs and contradictory options. Writes
  // nothing.
  ModelRun(const CollectArguments& collect, const CommonOptions& common, const std::string& work_dir);

  const Checkpoint& checkpoint() const { return checkpoint_; }
  at::Device device() const { return arguments_.options.device; }
  at::ScalarType dtype() const { return arguments_.options.dtype; }
  void add_roles(FileRoles& roles) const;
  // Reads or generates them, and holds some out; under --dry-run uses prompts of equal lengths.
  void read_prompts(const CacheWindows& windows);
  // The text for curves if --text does not name one: the prompts, or all text if they are too short.
  CurveText curve_text(const CacheWindows& windows, const CurveArguments& curves) const;

  // The held-out text for the measurement at the end; nullopt: the prompts were too few.
  std::optional<HeldOutText> held_out(const CacheWindows& windows) const;

  // --dry-run. curves: the cost of measuring them, if they are measured.
  ModelPlan plan(const std::optional<CurvePlan>& curves, const CacheWindows& windows) const;
  // Collects the statistics, or with --resume takes them from an earlier run with the same model, prompts and options.
  void collect(FitListener& listener);
  // Removes the remaining empty folder of --work-dir.
  void finish() const;

 private:
  std::optional<HeldOutShape> held_out_shape(const CacheWindows& windows) const;
  void plan_own_text();
  PromptSet read_own_text();
  bool take_earlier() const;

  CollectArguments arguments_;
  CommonOptions common_;
  fs::path work_dir_;
  Checkpoint checkpoint_;
  std::optional<OwnText> own_text_;
  PromptSet given_, prompts_;  // the user's prompts; the same with self-generated text first
  PromptSet held_out_;         // in neither of them
  std::string given_names_;    // names of the user's files
  CollectRun run_;
};

}  // namespace oscar
