// oscar-collect: second moments of a model's attention on a set of prompts. Subcommands merge and show.
#include <charconv>
#include <iostream>

#include "apps/collect_output.h"
#include "apps/common_options.h"
#include "apps/device_choice.h"
#include "base/errors.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "moments/collect.h"
#include "moments/collect_estimate.h"
#include "moments/show.h"
#include "text/prompts.h"

namespace oscar {
namespace {

constexpr const char* kExample =
    "oscar-collect --model Qwen/Qwen3-8B --prompts prompts.jsonl -o stats.safetensors\n"
    "oscar-collect merge part1.safetensors part2.safetensors -o stats.safetensors\n"
    "oscar-collect show stats.safetensors";

struct Arguments {
  CommonOptions common;
  CollectOptions collect;
  std::vector<std::string> prompts, parts;
  std::string work_dir, shown, far_pairs = "64,256";
  bool allow_same_prompts = false;
};

void add_collect_options(CLI::App& app, Arguments& a) {
  app.add_option("--prompts", a.prompts, "Calibration prompts: .jsonl rows or .txt documents")->type_name("FILE");
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
  app.add_flag("--stream-layers", a.collect.stream_layers, "Keep one layer's weights in memory; same results");
  app.add_option("--checkpoint-seconds", a.collect.checkpoint_seconds, "Time between checkpoints inside a layer")
      ->capture_default_str()
      ->type_name("SECONDS")
      ->check(CLI::Range(0.0, 1e9).description(""));
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
  CollectOptions& options = a.collect;
  options.output = a.common.output;
  options.work_dir = a.work_dir;
  options.overwrite = a.common.overwrite;
  options.seed = a.common.seed;
  options.far = parse_far_pairs(a.far_pairs);
  options.tool_version = tool_version();
  if (!a.common.dry_run) require_absent(options.output, options.overwrite);
  options.device = choose_device(a.common);
  options.dtype = choose_dtype(a.common, options.device);

  const Checkpoint checkpoint = Checkpoint::open(locate_model(a.common.model, a.common.revision));
  const std::int64_t limit = checkpoint.config().max_position;
  if (limit > 0 && options.seq_len > limit) {
    log_info("--seq-len " + std::to_string(options.seq_len) + " is longer than the model's context; using " +
             std::to_string(limit));
    options.seq_len = limit;
  }
  const fs::path& directory = checkpoint.location().directory;
  const Tokenizer tokenizer = Tokenizer::from_file(directory / "tokenizer.json");
  const ChatTemplate chat = ChatTemplate::from_model(directory);
  std::vector<fs::path> files(a.prompts.begin(), a.prompts.end());
  for (const fs::path& file : files) options.files.push_back(file.filename().string());
  const PromptSet prompts = load_prompts(files, tokenizer, chat, checkpoint.config().vocabulary);
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
  require_absent(a.common.output, a.common.overwrite);
  std::vector<Statistics> parts;
  for (const std::string& part : a.parts) parts.push_back(load_statistics(part));
  const Statistics merged = merge_statistics(parts, a.allow_same_prompts);
  if (a.allow_same_prompts) warn_of_same_prompts(merged);
  if (!a.common.dry_run) save_statistics(merged, a.common.output);
  print_merged(a.parts, merged, a.common);
  return 0;
}

int run_show(const Arguments& a) {
  const Statistics statistics = load_statistics(a.shown);
  std::cout << (a.common.json ? dump_json(show_json(statistics)) : show_text(statistics, locale_is_utf8()));
  return 0;
}

int main_collect(int argc, char** argv) {
  Arguments a;
  CLI::App app{"Collect attention statistics of a model for oscar-fit.", "oscar-collect"};
  set_up_app(app, a.common, kExample);
  add_model_options(app, a.common, false);
  add_collect_options(app, a);
  add_output_options(app, a.common, false);

  CLI::App* merge = app.add_subcommand("merge", "Add up statistics of the same model on different prompts");
  merge->add_option("parts", a.parts, "Statistics files")->required()->expected(-2)->type_name("FILE");
  merge->add_flag("--allow-same-prompts", a.allow_same_prompts, "Accept parts with the same prompt set");
  merge->fallthrough();
  CLI::App* show = app.add_subcommand("show", "Print geometry, tokens and spectra of a statistics file");
  show->add_option("file", a.shown, "Statistics file")->required()->type_name("FILE");
  show->fallthrough();
  app.require_subcommand(0, 1);

  a.collect.resume_command = resume_command(argc, argv);
  return run_app(app, a.common, argc, argv, [&] {
    if (merge->parsed()) return run_merge(a);
    if (show->parsed()) return run_show(a);
    return run_collect(a);
  });
}

}  // namespace
}  // namespace oscar

int main(int argc, char** argv) { return oscar::main_collect(argc, argv); }
