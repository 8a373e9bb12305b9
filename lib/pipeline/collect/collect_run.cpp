#include "pipeline/collect/collect_run.h"

#include "base/foreign_text.h"
#include "base/log.h"
#include "checkpoint/model_location.h"
#include "collect/shard.h"

namespace oscar {
namespace {

constexpr std::size_t kNotesShown = 12;

void log_plan_notes(const TokenPlan& plan, std::int64_t budget) {
  log_info("prompts: " + plan_counts(plan) + ", longest " + std::to_string(plan.longest));
  const std::vector<std::string> notes = plan_notes(plan, budget);
  const bool all = log_level() == LogLevel::kVerbose || notes.size() <= kNotesShown;
  for (std::size_t i = 0; i < (all ? notes.size() : kNotesShown); ++i) log_info("  " + notes[i]);
  if (!all) {
    log_info("  and " + std::to_string(notes.size() - kNotesShown) +
             " more notes (-v prints all; the statistics file records all)");
  }
}

}  // namespace

std::string share_text(const TokenPlan& plan) {
  return std::to_string(plan.tokens) + " of " + std::to_string(plan.whole_tokens) + " tokens in " +
         std::to_string(plan.pieces.size()) + " of " + std::to_string(plan.whole_sequences) + " sequences";
}

std::string plan_counts(const TokenPlan& plan) {
  if (plan.shard.is_part()) return share_text(plan) + ", shard " + shard_text(plan.shard);
  return std::to_string(plan.tokens) + " tokens in " + std::to_string(plan.pieces.size()) + " sequences from " +
         std::to_string(plan.prompts_used) + " prompts";
}

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
  log_plan_notes(run.plan, a.options.tokens);
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
