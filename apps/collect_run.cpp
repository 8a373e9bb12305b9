#include "apps/collect_run.h"

#include <charconv>

#include "apps/collect_output.h"
#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/log.h"
#include "checkpoint/checkpoint_files.h"
#include "statistics/shard.h"

namespace oscar {
namespace {

FarPairs parse_far_pairs(const std::string& text) {
  FarPairs pairs;
  if (text == "none") {
    pairs.enabled = false;
    return pairs;
  }
  const std::size_t comma = text.find(',');
  const auto read = [](const std::string& part, std::int64_t& value) {
    const auto end = std::from_chars(part.data(), part.data() + part.size(), value);
    return end.ec == std::errc() && end.ptr == part.data() + part.size() && value >= 0 && value <= (1 << 30);
  };
  if (comma == std::string::npos || !read(text.substr(0, comma), pairs.sink) ||
      !read(text.substr(comma + 1), pairs.recent) || pairs.recent < 1) {
    throw UsageError("--far-pairs is '" + text + "', expected SINK,RECENT such as 64,256, or none");
  }
  return pairs;
}

}  // namespace

void add_prompts_option(CLI::App& app, CollectArguments& a, const std::string& text) {
  app.add_option("--prompts", a.prompts, text)->type_name("FILE");
}

void add_prompt_options(CLI::App& app, CollectArguments& a) {
  app.add_flag("--skip-bad-rows", a.prompt_options.skip_bad_rows,
               "Count rows that are malformed or that the chat template cannot render, and go on");
  app.add_option("--date", a.date, "The day that chat templates are told which ask for it (default: today)")
      ->type_name("YYYY-MM-DD");
  app.add_option("--tokens", a.options.tokens, "Token budget over all prompts")
      ->capture_default_str()
      ->type_name("N")
      ->check(whole_number(1, std::uint64_t{1} << 40));
  app.add_option("--seq-len", a.options.seq_len, "Longest sequence; longer prompts are cut into pieces")
      ->capture_default_str()
      ->type_name("N")
      ->check(whole_number(1, std::uint64_t{1} << 24));
  app.add_option(
         "--far-pairs", a.far_pairs,
         "BF16 windows whose complement the quantised cache will serve: far-pair metrics for waterfill; or none")
      ->capture_default_str()
      ->type_name("SINK,RECENT");
  app.add_option("--checkpoint-seconds", a.options.checkpoint_seconds, "Time between checkpoints inside a layer")
      ->capture_default_str()
      ->type_name("SECONDS")
      ->check(real_number(0.0, 1e9));
}

void complete_collect_options(CollectArguments& a, const CommonOptions& common, const Checkpoint& checkpoint) {
  CollectOptions& options = a.options;
  options.overwrite = common.overwrite;
  options.seed = common.seed;
  options.far = parse_far_pairs(a.far_pairs);
  options.kl = a.metric == "kl";
  options.shard = parse_shard(a.shard);
  if (options.kl && !options.far.enabled) {
    throw UsageError("--metric kl is for far pairs, and --far-pairs none leaves none: drop one of the two");
  }
  options.tool_version = tool_version();
  const std::int64_t limit = checkpoint.config().max_position;
  if (limit > 0 && options.seq_len > limit) {
    log_info("--seq-len " + std::to_string(options.seq_len) + " is longer than the model's context; using " +
             std::to_string(limit));
    options.seq_len = limit;
  }
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
  ChatTemplate chat = ChatTemplate::from_model(checkpoint.location().directory);
  if (!a.date.empty()) chat.set_date(a.date);
  return chat;
}

PromptSet read_prompts(CollectArguments& a, const Checkpoint& checkpoint) {
  const Tokenizer tokenizer = Tokenizer::from_file(checkpoint.location().directory / "tokenizer.json");
  const ChatTemplate chat = chat_template_of(a, checkpoint);
  const std::vector<fs::path> files(a.prompts.begin(), a.prompts.end());
  for (const fs::path& file : files) {
    a.options.files.push_back(file == "-" ? "stdin" : utf8_text(file.filename().string()));
  }
  PromptSet prompts = load_prompts(files, tokenizer, chat, checkpoint.config().vocabulary, a.prompt_options);
  if (prompts.bad_rows > 0) {
    log_info(std::to_string(prompts.bad_rows) +
             " bad rows were skipped (--skip-bad-rows), the first: " + prompts.first_bad);
  }
  if (!prompts.date.empty() && a.date.empty()) {
    log_info("the chat template writes the date, " + prompts.date + "; --date " + prompts.date +
             " gives the same prompts on another day");
    a.options.resume_command += " --date " + prompts.date;
  }
  return prompts;
}

CollectRun plan_collect(const CollectArguments& a, const Checkpoint& checkpoint, const PromptSet& prompts) {
  CollectRun run;
  run.plan = make_token_plan(prompts, a.options.tokens, a.options.seq_len);
  print_plan_notes(run.plan, a.options.tokens);
  run.plan = shard_plan(run.plan, a.options.shard);
  if (run.plan.shard.is_part()) log_info("shard " + shard_text(run.plan.shard) + ": " + share_text(run.plan));
  if (run.plan.tokens > 0) run.estimate = estimate_bytes(checkpoint, run.plan, a.options);  // else nothing is loaded
  return run;
}

CollectReport run_collect(const CollectRun& run, const CollectArguments& a, const Checkpoint& checkpoint,
                          const PromptSet& prompts) {
  if (run.plan.tokens > 0) require_gpu_memory(checkpoint, run.plan, a.options, run.estimate);
  if (!a.options.resume) require_disk_space(a.options, run.estimate);
  return collect(checkpoint, prompts, run.plan, a.options);
}

}  // namespace oscar
