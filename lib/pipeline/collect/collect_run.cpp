#include "pipeline/collect/collect_run.h"

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/log.h"
#include "checkpoint/checkpoint_files.h"
#include "collect/shard.h"
#include "pipeline/collect/collect_output.h"

namespace oscar {

void add_collect_roles(const CollectArguments& a, const Checkpoint& checkpoint, FileRoles& roles) {
  roles.inputs({a.prompts.begin(), a.prompts.end()});
  roles.inputs(checkpoint_files(checkpoint.location()));
  roles.output(a.options.output, "-o");
  for (const char* name : {"lock", "run.json", "removing.json", "point.safetensors"}) {
    roles.output(work_directory_of(a.options) / name, "--work-dir");
  }
}

ChatTemplate chat_template_of(const CollectArguments& a, const Checkpoint& checkpoint) {
  return a.rows.chat_template(checkpoint.location().directory);
}

PromptSet read_prompts(CollectArguments& a, const Checkpoint& checkpoint) {
  const LazyTokenizer tokenizer(checkpoint.location().directory / "tokenizer.json");
  const ChatTemplate chat = chat_template_of(a, checkpoint);
  const std::vector<fs::path> files(a.prompts.begin(), a.prompts.end());
  for (const fs::path& file : files) {
    a.options.files.push_back(file == "-" ? "stdin" : utf8_text(file.filename().string()));
  }
  PromptSet prompts = load_prompts(files, tokenizer, chat, checkpoint.config().vocabulary, a.rows.options);
  for (const std::string& note : reading_notes(prompts)) log_info(note);
  if (prompts.bad_rows > 0) {
    log_info(std::to_string(prompts.bad_rows) +
             " bad rows were skipped (--skip-bad-rows), the first: " + prompts.first_bad);
  }
  if (!prompts.date.empty() && a.rows.date.empty()) {
    log_info("the chat template writes the date, " + prompts.date + "; --date " + prompts.date +
             " gives the same prompts on another day");
    a.options.resume_command += " --date " + prompts.date;
  }
  return prompts;
}

CollectRun plan_collect(const CollectArguments& a, const Checkpoint& checkpoint, const PromptSet& prompts) {
  CollectRun run;
  run.plan = make_token_plan(prompts, a.options.tokens, a.options.seq_len, a.options.context > 0);
  print_plan_notes(run.plan, a.options.tokens);
  run.told = run.plan;
  run.plan = shard_plan(run.plan, a.options.shard);
  if (a.options.ranks == nullptr) run.told = run.plan;
  if (run.plan.shard.is_part() && a.options.ranks != nullptr) {
    log_detail("rank " + std::to_string(a.options.ranks->rank()) + ": " + share_text(run.plan));
  } else if (run.plan.shard.is_part())
    log_info("shard " + shard_text(run.plan.shard) + ": " + share_text(run.plan));
  // Without tokens nothing is loaded.
  if (run.plan.tokens > 0) run.estimate = estimate_bytes(checkpoint, run.plan, a.options);
  return run;
}

CollectReport run_collect(const CollectRun& run, const CollectArguments& a, const Checkpoint& checkpoint,
                          const PromptSet& prompts) {
  if (run.plan.tokens > 0) require_gpu_memory(checkpoint, run.plan, a.options, run.estimate);
  CollectEstimate disk = run.estimate;
  if (const Ranks* ranks = a.options.ranks; ranks != nullptr) {  // this rank's share, and on rank 0 also the others'
                                                                 // shares
    disk.disk_bytes += disk.output_bytes * static_cast<std::uint64_t>(ranks->is_first() ? ranks->count() : 1);
  }
  if (!a.options.resume) require_disk_space(a.options, disk);
  return collect(checkpoint, prompts, run.plan, a.options);
}

}  // namespace oscar
