// oscar-collect: second moments of a model's attention on a set of prompts. Subcommands merge and show.
#include <charconv>

#include "apps/collect_output.h"
#include "apps/common_options.h"
#include "apps/device_choice.h"
#include "apps/output_files.h"
#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/log.h"
#include "base/output_file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_files.h"
#include "moments/collect.h"
#include "moments/collect_estimate.h"
#include "moments/show.h"
#include "moments/statistics_weight.h"
#include "text/prompts.h"

namespace oscar {
namespace {

constexpr const char* kExample =
    "oscar-collect --model Qwen/Qwen3-8B --prompts prompts.jsonl -o stats.safetensors\n"
    "oscar-collect merge part1.safetensors part2.safetensors -o stats.safetensors\n"
    "oscar-collect merge window.safetensors today.safetensors --decay 0.5 -o window2.safetensors\n"
    "oscar-collect show stats.safetensors";

struct Arguments {
  CommonOptions common;
  CollectOptions collect;
  std::vector<std::string> prompts, parts;
  std::string work_dir, shown, date, far_pairs = "64,256";
  PromptOptions prompt_options;
  MergeOptions merge;
  double decay = 1.0;
};

void add_collect_options(CLI::App& app, Arguments& a) {
  app.add_option("--prompts", a.prompts,
                 "Calibration prompts: .jsonl rows or .txt documents, also .gz; - reads rows from stdin (required)")
      ->type_name("FILE");
  app.add_flag("--skip-bad-rows", a.prompt_options.skip_bad_rows,
               "Count rows that are malformed or that the chat template cannot render, and go on");
  app.add_option("--date", a.date, "The day that chat templates are told which ask for it (default: today)")
      ->type_name("YYYY-MM-DD");
  app.add_option("--tokens", a.collect.tokens, "Token budget over all prompts")
      ->capture_default_str()
      ->type_name("N")
      ->check(whole_number(1, std::uint64_t{1} << 40));
  app.add_option("--seq-len", a.collect.seq_len, "Longest sequence; longer prompts are cut into pieces")
      ->capture_default_str()
      ->type_name("N")
      ->check(whole_number(1, std::uint64_t{1} << 24));
  app.add_option("--rows", a.collect.rows, "Sampled tokens for each layer, for the clip search")
      ->capture_default_str()
      ->type_name("N")
      ->check(whole_number(1, std::uint64_t{1} << 20));
  app.add_option(
         "--far-pairs", a.far_pairs,
         "BF16 windows whose complement the quantised cache will serve: far-pair metrics for waterfill; or none")
      ->capture_default_str()
      ->type_name("SINK,RECENT");
  app.add_option("--work-dir", a.work_dir, "Where state and hidden states are kept (default: OUTPUT.work)")
      ->type_name("DIR");
  app.add_flag("--resume", a.collect.resume, "Continue the run in the work directory, if there is one");
  app.add_flag("--text-hashes,!--no-text-hashes", a.collect.text_hashes,
               "Record hashes of documents and passages, which tell whether a text was calibrated on; without them no "
               "one can test that, neither you nor others")
      ->default_str("on");
  app.add_flag("--stream-layers", a.collect.stream_layers, "Keep one layer's weights in memory; same results");
  app.add_option("--checkpoint-seconds", a.collect.checkpoint_seconds, "Time between checkpoints inside a layer")
      ->capture_default_str()
      ->type_name("SECONDS")
      ->check(real_number(0.0, 1e9));
}

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

int run_collect(Arguments& a) {
  if (a.common.model.empty()) throw UsageError("--model is required (oscar-collect --help explains)");
  if (a.prompts.empty()) throw UsageError("--prompts is required (oscar-collect --help explains)");
  if (a.common.output.empty()) throw UsageError("-o/--output is required (oscar-collect --help explains)");
  require_no_stdout(a.common.output, "statistics");
  CollectOptions& options = a.collect;
  options.output = a.common.output;
  options.work_dir = a.work_dir;
  options.overwrite = a.common.overwrite;
  options.seed = a.common.seed;
  options.far = parse_far_pairs(a.far_pairs);
  options.tool_version = tool_version();
  if (!a.common.dry_run) require_output_file(options.output, options.overwrite);
  options.device = choose_device(a.common);
  options.dtype = choose_dtype(a.common, options.device);

  const Checkpoint checkpoint = Checkpoint::open(locate_model(a.common.model, a.common.revision));
  const std::int64_t limit = checkpoint.config().max_position;
  if (limit > 0 && options.seq_len > limit) {
    log_info("--seq-len " + std::to_string(options.seq_len) + " is longer than the model's context; using " +
             std::to_string(limit));
    options.seq_len = limit;
  }
  FileRoles roles;
  roles.inputs({a.prompts.begin(), a.prompts.end()});
  roles.inputs(checkpoint_files(checkpoint.location()));
  roles.input(a.common.config);
  roles.output(options.output, "-o");
  for (const char* name : {"lock", "run.json", "removing.json", "point.safetensors"}) {
    roles.output(work_directory_of(options) / name, "--work-dir");
  }
  roles.check();
  const fs::path& directory = checkpoint.location().directory;
  const Tokenizer tokenizer = Tokenizer::from_file(directory / "tokenizer.json");
  ChatTemplate chat = ChatTemplate::from_model(directory);
  if (!a.date.empty()) chat.set_date(a.date);
  std::vector<fs::path> files(a.prompts.begin(), a.prompts.end());
  for (const fs::path& file : files) {
    options.files.push_back(file == "-" ? "stdin" : utf8_text(file.filename().string()));
  }
  const PromptSet prompts = load_prompts(files, tokenizer, chat, checkpoint.config().vocabulary, a.prompt_options);
  if (prompts.bad_rows > 0) {
    log_info(std::to_string(prompts.bad_rows) +
             " bad rows were skipped (--skip-bad-rows), the first: " + prompts.first_bad);
  }
  if (!prompts.date.empty() && a.date.empty()) {
    log_info("the chat template writes the date, " + prompts.date + "; --date " + prompts.date +
             " gives the same prompts on another day");
    options.resume_command += " --date " + prompts.date;
  }
  const TokenPlan plan = make_token_plan(prompts, options.tokens, options.seq_len);
  print_plan_notes(plan, options.tokens);

  CollectEstimate estimate = estimate_bytes(checkpoint, plan, options);
  if (a.common.dry_run) {
    measure_time(checkpoint, prompts, plan, options, estimate);
    print_estimate(plan, options, estimate, a.common.json);
    return 0;
  }
  require_gpu_memory(checkpoint, plan, options, estimate);
  if (!options.resume) require_disk_space(options, estimate);
  print_result(plan, options, collect(checkpoint, prompts, plan, options), a.common.json);
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
  for (const std::string& part : a.parts) parts.push_back(load_statistics(part));
  if (a.decay < 1.0) parts = decayed_statistics(std::move(parts), a.decay);
  const Statistics merged = merge_statistics(parts, a.merge);
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
  const Statistics statistics = load_statistics(a.shown);
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
  add_collect_options(app, a);
  add_output_options(app, a.common, false);
  app.get_option("--output")->description("Where to write the result (required, but for show)");

  CLI::App* merge = app.add_subcommand("merge", "Add up statistics of the same model on different prompts");
  merge->add_option("parts", a.parts, "Statistics files")->required()->expected(-2)->type_name("FILE");
  merge->add_flag("--allow-same-prompts", a.merge.same_prompts, "Accept parts with the same prompt set");
  merge->add_flag("--allow-mixed-dtypes", a.merge.mixed_dtypes, "Accept parts collected in different precisions");
  merge->add_flag("--allow-missing-far-pairs", a.merge.missing_far_pairs,
                  "Accept parts without far pairs beside parts that have them");
  merge
      ->add_option("--decay", a.decay,
                   "Moving window over traffic: parts are given from the oldest to the newest, and each counts D times "
                   "as much as the one after it")
      ->check(CLI::Range(1e-6, 1.0))
      ->type_name("D");
  merge->fallthrough();
  CLI::App* show = app.add_subcommand("show", "Print geometry, tokens and spectra of a statistics file");
  show->add_option("file", a.shown, "Statistics file")->required()->type_name("FILE");
  show->fallthrough();
  app.require_subcommand(0, 1);

  a.collect.resume_command = resume_command(argc, argv);
  return run_app(app, a.common, argc, argv, [&] {
    if (merge->parsed()) {
      refuse_other_options(app, {"--output", "--overwrite", "--dry-run"}, "is not used by merge: drop it");
      return run_merge(a);
    }
    if (show->parsed()) {
      refuse_other_options(app, {"--output", "--overwrite", "--dry-run"}, "is not used by show: drop it");
      return run_show(a);
    }
    return run_collect(a);
  });
}

}  // namespace
}  // namespace oscar

int main(int argc, char** argv) { return oscar::main_collect(argc, argv); }
