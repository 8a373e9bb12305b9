// One run of collecting statistics, as oscar-collect and `oscar-fit --model` make it: what it reads, what it writes.
#pragma once

#include <string>
#include <vector>

#include "apps/options/collect_arguments.h"
#include "base/file_roles.h"
#include "checkpoint/checkpoint.h"
#include "statistics/collect.h"
#include "statistics/collect_estimate.h"
#include "text/prompts.h"

namespace oscar {

// The files that a run reads and writes, but for the file of --config.
void add_collect_roles(const CollectArguments& arguments, const Checkpoint& checkpoint, FileRoles& roles);

// The model's chat template, told the day of --date.
ChatTemplate chat_template_of(const CollectArguments& arguments, const Checkpoint& checkpoint);

// The prompts of all files; says which rows were skipped, and which day the template was told.
PromptSet read_prompts(CollectArguments& arguments, const Checkpoint& checkpoint);

// The length of packed sequences, where --seq-len does not say it: the contexts that will be served, or less where
// memory ends before them, or where the model reads worse than short sequences (statistics/reading_range.h; a context
// of
// --context is taken as it is). A resumed run keeps its length. All ranks get that of rank 0. Sets the budget of tokens
// that follows from it. dry: nothing runs through the model.
void choose_sequences(CollectArguments& arguments, Checkpoint& checkpoint, const PromptSet& prompts, bool dry);

// A run that is ready: nothing is written yet.
struct CollectRun {
  TokenPlan plan;
  TokenPlan told;            // what results tell of: of a rank the whole run, else `plan`
  CollectEstimate estimate;  // bytes alone
};
CollectRun plan_collect(const CollectArguments& arguments, const Checkpoint& checkpoint, const PromptSet& prompts);

// collect(), after GPU memory and disk space were checked.
CollectReport run_collect(const CollectRun& run, const CollectArguments& arguments, const Checkpoint& checkpoint,
                          const PromptSet& prompts);

}  // namespace oscar
