// One run of collecting statistics, as oscar-collect and `oscar-fit --model` make it: its options, what it reads, what
// it writes.
#pragma once

#include <string>
#include <vector>

#include "apps/common_options.h"
#include "base/file_roles.h"
#include "checkpoint/checkpoint.h"
#include "statistics/collect.h"
#include "statistics/collect_estimate.h"
#include "text/prompts.h"

namespace oscar {

struct CollectArguments {
  CollectOptions options;
  std::vector<std::string> prompts;  // files, or "-"
  std::string date, far_pairs = "64,256", metric = "fisher", shard = "1/1";
  PromptOptions prompt_options;
};

// Options of collecting that both commands describe alike, and --prompts, described by `text`.
void add_prompts_option(CLI::App& app, CollectArguments& arguments, const std::string& text);
void add_prompt_options(CLI::App& app, CollectArguments& arguments);

// Fills in what follows from other options: the seed, far pairs, tool version, and a sequence length that the model
// knows. The output, the work directory, the device and the type are the caller's. UsageError.
void complete_collect_options(CollectArguments& arguments, const CommonOptions& common, const Checkpoint& checkpoint);

// The files that a run reads and writes, but for the file of --config.
void add_collect_roles(const CollectArguments& arguments, const Checkpoint& checkpoint, FileRoles& roles);

// The model's chat template, told the day of --date.
ChatTemplate chat_template_of(const CollectArguments& arguments, const Checkpoint& checkpoint);

// The prompts of all files; says which rows were skipped, and which day the template was told.
PromptSet read_prompts(CollectArguments& arguments, const Checkpoint& checkpoint);

// A run that is ready: nothing is written yet.
struct CollectRun {
  TokenPlan plan;
  CollectEstimate estimate;  // bytes alone
};
CollectRun plan_collect(const CollectArguments& arguments, const Checkpoint& checkpoint, const PromptSet& prompts);

// collect(), after GPU memory and disk space were checked.
CollectReport run_collect(const CollectRun& run, const CollectArguments& arguments, const Checkpoint& checkpoint,
                          const PromptSet& prompts);

}  // namespace oscar
