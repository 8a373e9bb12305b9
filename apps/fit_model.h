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
  const PromptSet& prompts() const { return prompts_; }
  std::string prompt_names() const;

  // --dry-run. curves: what measuring them would take, where they are measured.
  void print_plan(const std::optional<CurvePlan>& curves);
  // The statistics, collected now, or taken from an earlier run of the same model, prompts and options with --resume.
  void collect();
  // What remains of an empty folder of --work-dir.
  void finish() const;

 private:
  PromptSet read_own_text();
  bool take_earlier() const;

  CollectArguments& arguments_;
  const CommonOptions& common_;
  fs::path work_dir_;
  Checkpoint checkpoint_;
  std::optional<OwnText> own_text_;
  PromptSet prompts_;
  CollectRun run_;
};

}  // namespace oscar
