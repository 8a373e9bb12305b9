// oscar-fit --model without statistics: collects them first and keeps them beside the bundle, from prompts or from text
// that the model writes itself.
#pragma once

#include <optional>

#include "apps/fit_curves.h"
#include "apps/fit_text.h"

namespace oscar {

// The file beside the bundle in which the statistics are kept: "bundle.statistics.safetensors".
fs::path statistics_beside(const std::string& output);

class ModelRun {
 public:
  // Opens the model and chooses device and type. `work_dir`: of --work-dir, or empty; the parts of the run have folders
  // in it. UsageError for outputs that exist and options that contradict each other. Writes nothing.
  ModelRun(CollectArguments& collect, const CommonOptions& common, const std::string& work_dir);

  const Checkpoint& checkpoint() const { return checkpoint_; }
  void add_roles(FileRoles& roles) const;
  void read_prompts();  // or writes them; under --dry-run prompts of the same lengths take their place
  // What curves are measured on where --text names nothing else: the prompts, or all there is where they are too short.
  CurveText curve_text(const CacheWindows& windows, const CurveArguments& curves) const;

  // --dry-run. curves: what measuring them would take, where they are measured.
  void print_plan(const std::optional<CurvePlan>& curves);
  // The statistics, collected now, or taken from an earlier run of the same model, prompts and options with --resume.
  void collect();
  // What remains of an empty folder of --work-dir.
  void finish() const;

 private:
  void plan_own_text();
  PromptSet read_own_text();
  bool take_earlier() const;

  CollectArguments& arguments_;
  const CommonOptions& common_;
  fs::path work_dir_;
  Checkpoint checkpoint_;
  std::optional<OwnText> own_text_;
  PromptSet given_, prompts_;  // by the user; with own text in front
  std::string given_names_;    // of the user's files
  CollectRun run_;
};

}  // namespace oscar
