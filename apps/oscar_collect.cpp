// oscar-collect: second moments of a model's attention on a set of prompts. Subcommands merge and show files.
#include <algorithm>
#include <optional>
#include <thread>

#include "apps/options/collect_arguments.h"
#include "apps/options/help.h"
#include "apps/options/shared_options.h"
#include "apps/output/collect_output.h"
#include "apps/output/write_output.h"
#include "apps/process_setup.h"
#include "base/errors.h"
#include "base/log.h"
#include "base/output_file.h"
#include "checkpoint/checkpoint.h"
#include "collect/collect_phases.h"
#include "pipeline/collect/collect_run.h"
#include "pipeline/common/device_choice.h"
#include "pipeline/common/output_files.h"
#include "pipeline/common/rank_run.h"
#include "statistics/shard_merge.h"
#include "statistics/show.h"

namespace oscar {
namespace {

constexpr const char* kExample =
    "oscar-collect --model Qwen/Qwen3-8B --prompts prompts.jsonl -o stats.safetensors\n"
    "oscar-collect merge part1.safetensors part2.safetensors -o stats.safetensors\n"
    "oscar-collect --model M --prompts prompts.jsonl --shard 2/8 -o shard-2.safetensors\n"
    "oscar-collect show stats.safetensors";

struct Arguments {
  CommonOptions common;
  CollectArguments collect;
  std::vector<std::string> parts;
  std::string shown;
  MergeOptions merge;
};

void add_collect_options(CLI::App& app, CollectArguments& a) {
  add_prompts_option(
      app, a, "Calibration prompts: .jsonl rows or .txt documents, also .gz; - reads rows from stdin (required)");
  add_prompt_options(app, a);
  app.add_option("--context", a.context,
                 "Tokens of the contexts that will be served, which prompts are packed to (default: the model's "
                 "maximum, at most 131072, and not beyond what it reads well)")
      ->type_name("N")
      ->check(whole_number(1, std::uint64_t{1} << 24));
  app.add_option("--rows", a.options.rows, "Sampled tokens for each layer, for the clip search")
      ->capture_default_str()
      ->type_name("N")
      ->check(whole_number(1, std::uint64_t{1} << 20));
  app.add_option("--shard", a.shard,
                 "Collect the i-th of N shares of the run, for job arrays: merge adds all N files up to what one run "
                 "would write")
      ->type_name("i/N");
  app.add_option("--check-against", a.check_against,
                 "Predictions of a few tokens that your own stack wrote (docs/oscar-collect.md has the script): refuse "
                 "a checkpoint that is read otherwise here")
      ->type_name("FILE.json");
  app.add_option("--work-dir", a.options.work_dir, "Where state and hidden states are kept (default: OUTPUT.work)")
      ->type_name("DIR");
  app.add_flag("--resume", a.options.resume, "Continue the run in the work directory, if there is one");
  app.add_flag("--text-hashes,!--no-text-hashes", a.options.text_hashes,
               "Record hashes of documents and passages, which tell whether a text was calibrated on; without them no "
               "one can test that, neither you nor others")
      ->default_str("on");
}

// Reads the prompts and plans the run.
CollectRun prepare_run(CollectArguments& a, Checkpoint& checkpoint, PromptSet& prompts, bool dry) {
  const Timeline::Phase reading(a.options.timeline, phase::kPrompts);
  prompts = read_prompts(a, checkpoint);
  choose_sequences(a, checkpoint, prompts, dry);
  CollectRun run = plan_collect(a, checkpoint, prompts);
  checkpoint.set_run_length(run.plan.whole_longest);
  return run;
}

int collect_statistics(Arguments& a, Ranks* ranks) {
  Timeline timeline(collect_phases());
  if (a.common.verbose) a.collect.options.timeline = &timeline;
  std::optional<Timeline::Phase> starting(std::in_place, &timeline, phase::kStarting);
  if (a.common.model.empty()) throw UsageError("--model is required (oscar-collect --help explains)");
  if (a.collect.prompts.empty()) throw UsageError("--prompts is required (oscar-collect --help explains)");
  if (a.common.output.empty()) throw UsageError("-o/--output is required (oscar-collect --help explains)");
  require_no_stdout(a.common.output, "statistics");
  CollectOptions& options = a.collect.options;
  options.output = a.common.output;
  options.ranks = ranks;
  const bool told = is_first_rank(ranks);  // whether this process prints
  if (!a.common.dry_run && told) require_output_file(options.output, a.common.overwrite);
  const std::jthread device = start_device(a.common, ranks);  // while the model's files are opened
  const ModelLocation location = locate_model(a.common.model, a.common.revision);
  Checkpoint checkpoint = a.common.dry_run ? Checkpoint::open_index(location) : Checkpoint::open(location);
  options.device = choose_device(a.common, ranks);
  options.dtype = choose_dtype(a.common, options.device);
  complete_collect_options(a.collect, a.common, checkpoint);
  FileRoles roles;
  roles.input(a.common.config);
  roles.input(a.collect.check_against);
  add_collect_roles(a.collect, checkpoint, roles);
  roles.check();
  starting.reset();
  if (!a.collect.check_against.empty() && !a.common.dry_run && told) {
    log_info(check_against(a.collect.check_against, checkpoint, options.dtype, options.device));
  }
  PromptSet prompts;
  CollectRun run = prepare_run(a.collect, checkpoint, prompts, a.common.dry_run);
  if (a.common.dry_run) {
    if (!told) return 0;
    print_estimate(run.plan, options, run.estimate, a.common.json);
    return 0;
  }
  require_alike(ranks, options.device);
  const CollectReport report = run_collect(run, a.collect, checkpoint, prompts);
  if (told) print_result(run.told, options, report, a.common.json);
  log_other_timelines(options.timeline, ranks);
  return 0;
}

int run_merge(const Arguments& a) {
  if (a.common.output.empty()) throw UsageError("merge needs -o/--output");
  require_no_stdout(a.common.output, "statistics");
  if (!a.common.dry_run) require_output_file(a.common.output, a.common.overwrite);
  FileRoles roles;
  roles.inputs({a.parts.begin(), a.parts.end()});
  roles.input(a.common.config);
  roles.output(a.common.output, "-o");
  roles.check();
  std::vector<Statistics> parts;
  for (const std::string& part : a.parts) parts.push_back(load_part(part));
  const bool shards = std::any_of(parts.begin(), parts.end(), is_shard);
  const Statistics merged = shards ? merge_shards(std::move(parts), a.parts) : merge_statistics(parts, a.merge);
  if (a.merge.same_prompts) warn_of_same_prompts(merged);
  if (!a.common.dry_run) save_statistics(merged, a.common.output);
  print_merged(a.parts, merged, a.common);
  return 0;
}

int run_show(const Arguments& a) {
  const std::string output = a.common.output.empty() ? kStandardOutput : a.common.output;
  if (output != kStandardOutput) require_output_file(output, a.common.overwrite);
  FileRoles roles;
  roles.inputs({a.shown, a.common.config});
  if (output != kStandardOutput) roles.output(output, "-o");
  roles.check();
  const Statistics statistics = load_part(a.shown);
  const std::string text = a.common.json ? dump_json(show_json(statistics)) : show_text(statistics, locale_is_utf8());
  if (!a.common.dry_run) write_output(output, text);
  return 0;
}

int main_collect(int argc, char** argv) {
  Arguments a;
  CLI::App app{"Collect attention statistics of a model for oscar-fit.", "oscar-collect"};
  set_up_app(app, a.common, kExample);
  add_model_options(app, a.common, false);
  app.get_option("--model")->description("Model directory, or org/name in the Hugging Face cache (required)");
  add_collect_options(app, a.collect);
  add_output_options(app, a.common, false);
  app.get_option("--output")->description("Where to write the result (required, but for show)");
  show_to_experts(app,
                  "--revision --dtype --seed --skip-bad-rows --column --render --date --check-against "
                  "--checkpoint-seconds --rows --work-dir --text-hashes --pack --seq-len");

  CLI::App* merge =
      app.add_subcommand("merge", "Add up statistics of the same model on different prompts, or all shards of one run");
  merge->add_option("parts", a.parts, "Statistics files")->required()->expected(-2)->type_name("FILE");
  merge->add_flag("--allow-same-prompts", a.merge.same_prompts, "Accept parts with the same prompt set");
  merge->add_flag("--allow-mixed-dtypes", a.merge.mixed_dtypes, "Accept parts collected in different precisions");
  merge->add_flag("--allow-missing-far-pairs", a.merge.missing_far_pairs,
                  "Accept parts without metrics of pairs outside the windows beside parts that have them");
  merge->fallthrough();
  CLI::App* show = app.add_subcommand("show", "Print geometry, tokens and spectra of a statistics file");
  show->add_option("file", a.shown, "Statistics file")->required()->type_name("FILE");
  show->fallthrough();
  app.require_subcommand(0, 1);

  return run_app(app, a.common, argc, argv, [&] {
    a.collect.tokens_given = app.get_option("--tokens")->count() > 0;
    if (merge->parsed()) {
      refuse_other_options(app, {"--output", "--overwrite", "--dry-run"}, "is not used by merge: drop it");
      return run_merge(a);
    }
    if (show->parsed()) {
      refuse_other_options(app, {"--output", "--overwrite", "--dry-run"}, "is not used by show: drop it");
      return run_show(a);
    }
    a.collect.options.resume_command = as_started(resume_command(argc, argv));
    return run_as_rank(a.collect.options.resume_command, [&](Ranks* ranks) { return collect_statistics(a, ranks); });
  });
}

}  // namespace
}  // namespace oscar

int main(int argc, char** argv) { oscar::end_process(oscar::main_collect(argc, argv)); }
