// One run of collecting statistics, for oscar-collect and `oscar-fit --model`: its inputs and outputs.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "base/file_roles.h"
#include "base/files.h"
#include "checkpoint/checkpoint.h"
#include "collect/collect.h"
#include "collect/collect_estimate.h"
#include "pipeline/collect/collect_request.h"
#include "text/prompts.h"

namespace oscar {

// The files that a run reads and writes, except the file of --config.
void add_collect_roles(const CollectArguments& arguments, const Checkpoint& checkpoint, FileRoles& roles);

// The model's chat template, with the day from --date.
ChatTemplate chat_template_of(const CollectArguments& arguments, const Checkpoint& checkpoint);

// The prompts of all files. Reports the skipped rows and the day given to the template.
PromptSet read_prompts(CollectArguments& arguments, const Checkpoint& checkpoint);

// Chooses the length of packed sequences if --seq-len does not give it, and sets the token budget that follows from it.
// The length is the context that will be served, or less if memory does not suffice. It is also less if the model reads
// long sequences worse than short ones (collect/reading_range.h); a context from --context is used unchanged. A
// resumed run keeps its length. All ranks use rank 0's length. dry: nothing runs through the model.
void choose_sequences(CollectArguments& arguments, Checkpoint& checkpoint, const PromptSet& prompts, bool dry);

// A prepared run: nothing is written yet.
struct CollectRun {
  TokenPlan plan;
  TokenPlan told;            // the plan in results: for a rank the complete run, otherwise `plan`
  CollectEstimate estimate;  // only bytes
};
CollectRun plan_collect(const CollectArguments& arguments, const Checkpoint& checkpoint, const PromptSet& prompts);

// "500 of 2000 tokens in 3 of 11 sequences": a shard's share of the run.
std::string share_text(const TokenPlan& plan);
// The same with the shard, or "2000 tokens in 11 sequences from 11 prompts".
std::string plan_counts(const TokenPlan& plan);

// collect(), after checks of GPU memory and disk space.
CollectReport run_collect(const CollectRun& run, const CollectArguments& arguments, const Checkpoint& checkpoint,
                          const PromptSet& prompts);

// --check-against: compares another stack's predictions with this reader's predictions for the same checkpoint.
// The file is {"ids": [...], "top": [...]}: tokens of one text, and after each of them the other stack's most likely
// token. "logits" [ids][vocabulary] may replace "top". InputError for a file of another form, or if the two disagree: a
// top token of the other stack has a logit more than 0.5 below the highest one here.
// Returns a line that says how well they agree.
std::string check_against(const fs::path& file, const Checkpoint& checkpoint, at::ScalarType dtype, at::Device device);

}  // namespace oscar
