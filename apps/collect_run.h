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
