// The options of oscar-fit, in the order of --help.
#include "apps/options/collect_arguments.h"
#include "apps/options/fit_arguments.h"
#include "apps/options/help.h"
#include "export/export_format.h"
#include "registry/registry.h"

namespace oscar {
namespace {

// The description of formats for --for.
std::string format_help() {
  std::vector<std::string> published, general, rest;
  for (const ExportFormat& format : export_formats()) {
    (format.published() ? published : rest).push_back(format.id);
    if (format.general) general.push_back(format.id + " takes method " + format.method);
  }
  const auto joined = [](const std::vector<std::string>& names) {
    std::string text;
    for (std::size_t i = 0; i < names.size(); ++i) {
      text += (i == 0 ? "" : i + 1 < names.size() ? ", " : " and ") + names[i];
    }
    return text;
  };
  return "Fit what this export format carries without loss: for " + joined(published) +
         " one clip ratio for the keys and one for the values of all layers, and encoder minmax; " + joined(general) +
         "; " + joined(rest) + " carry everything";
}

void add_transform_options(CLI::App& app, FitArguments& a) {
  std::string methods;
  for (const MethodRow& row : method_registry()) {
    if (row.fitted()) methods += "\n  " + row.id + ": " + row.fit_summary;
  }
  app.add_option("--method", a.fit.method, "Transform (default: waterfill, or what --for carries):" + methods);
  app.add_option("--for", a.form, format_help())->type_name("FORMAT");
  app.add_option("--scope", a.scope, "One rotation for a layer (oscar), or one for each KV head (balanced, waterfill)")
      ->check(CLI::IsMember({"auto", "layer", "head"}))
      ->capture_default_str();
  app.add_option(
         "--center", a.center,
         "Store keys (key) or keys and values (mean) without the mean of their head (balanced: mean); rope: mean, but "
         "of the keys before RoPE, rotated to each position (waterfill: in the layers where it pays, else mean)")
      ->check(CLI::IsMember({"auto", "none", "key", "mean", "rope"}))
      ->capture_default_str();
}

void add_code_options(CLI::App& app, FitArguments& a) {
  app.add_option("--clip", a.clip, "search (oscar), none (balanced, waterfill), or the ratios K,V for all layers")
      ->capture_default_str();
  add_device_option(app, a.common);
  app.add_option("--encoder", a.encoder,
                 "How scales and codes are chosen; engines that read published files use minmax")
      ->check(CLI::IsMember({"auto", "minmax", "search"}))
      ->capture_default_str();
  app.add_option("--bits", a.bits,
                 "Bits per quantized element, parameters included: for waterfill any budget (default 2.25, with latent "
                 "attention 4), else 2 + 32/group (default: one group)")
      ->check(real_number(0.01, 100.0));
  add_target_options(app, a.target);
  app.add_option("--pareto", a.pareto,
                 "Waterfill: a bundle for each of these budgets, in folders of OUTPUT, and a table")
      ->delimiter(',')
      ->check(real_number(0.01, 100.0))
      ->type_name("B,B,...");
  app.add_option("--windows", a.window_text, "BF16 tokens at the start and at the end")->capture_default_str();
}

void add_statistics_options(CLI::App& app, FitArguments& a) {
  app.add_option("--context", a.context,
                 "Tokens of the contexts that will be served: prompts are packed to this length where statistics are "
                 "collected, and balanced and waterfill fit keys to their mean over these positions. 0: to the "
                 "positions of the statistics (default: the model's maximum, at most 131072)")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 30));
  app.add_flag("--text-hashes,!--no-text-hashes", a.text_hashes,
               "Put the hashes of the calibration text into the bundle (calibration_hashes.json), so that oscar-verify "
               "can warn of text that was calibrated on; others can test texts by them, too")
      ->default_str("on");
  app.add_flag("--check-rows,!--no-check-rows", a.check_rows,
               "Put a few sampled queries, keys and values of every layer into the bundle (self_check.safetensors, at "
               "most 32 MB), on which engines check their kernels before they serve, and where text was held out 512 "
               "of its tokens (probe.json); both tell of the calibration text")
      ->default_str("on");
}

void add_curve_options(CLI::App& app, FitArguments& a) {
  app.add_option("--allocate", a.curves.allocate,
                 "Waterfill: widths from the statistics (analytic), or by KL measured for each layer and side, on "
                 "--model and --text (default: measured with --text or --curves, where statistics are collected from "
                 "prompts, and below 1.5 bits; else analytic); auto, if given: the same, and methods that allocate no "
                 "bits ignore --model and --text")
      ->check(CLI::IsMember({"auto", "analytic", "measured"}));
  app.add_option("--model", a.common.model,
                 "The model: without a statistics file they are collected from it first and kept as "
                 "OUTPUT.statistics.safetensors; else the model that they are of, to measure curves on")
      ->type_name("DIR|org/name");
  app.add_option("--text", a.curves.text,
                 "Calibration text for the curves: .jsonl prompts or .txt documents, never text that oscar-verify "
                 "scores (default: --prompts, where statistics are collected)")
      ->type_name("FILE");
  app.add_option("--curve-context", a.curves.context,
                 "Tokens of each sequence of the curves (default: 2048; 1024 for large models on the CPU)")
      ->check(whole_number(64, std::uint64_t{1} << 24));
  app.add_option("--curve-sequences", a.curves.sequences,
                 "Sequences of the text that curves are measured on (default: 8; 4 for large models on the CPU)")
      ->check(whole_number(1, 10000));
  app.add_option("--curves", a.curves.file,
                 "curves.json of a bundle of the same fit, in place of measuring: other budgets")
      ->type_name("FILE");
  app.add_option("--work-dir", a.curves.work_dir,
                 "Where the state of measuring, writing text and collecting is kept (default: folders beside OUTPUT)")
      ->type_name("DIR");
  app.add_flag("--resume", a.curves.resume, "Go on with what an earlier run left: text, statistics and curves");
  app.add_flag("--stream-layers", a.curves.stream_layers, "Keep one layer's weights in memory; same results");
  app.add_option("--revision", a.common.revision, "Branch, tag or commit in the Hugging Face cache");
  app.add_option("--dtype", a.common.dtype, "Of weights and activations of the model")
      ->check(CLI::IsMember({"auto", "bfloat16", "float32"}))
      ->capture_default_str();
}

void add_collecting_options(CLI::App& app, FitArguments& a) {
  const std::string group = app.option_defaults()->get_group();
  app.option_defaults()->group("COLLECTING, WITH --model AND WITHOUT A STATISTICS FILE");
  add_prompts_option(app, a.collect,
                     "Calibration prompts: .jsonl rows or .txt documents, also .gz; - reads rows from stdin (default: "
                     "the model writes --tokens of text itself, kept as OUTPUT.prompts.jsonl)");
  add_prompt_options(app, a.collect);
  app.add_option("--own-text", a.collect.own_tokens,
                 "Beside the prompts, calibrate on as many tokens that the model writes itself, for traffic of other "
                 "kinds than the prompts (default: none)")
      ->type_name("TOKENS")
      ->check(whole_number(0, std::uint64_t{1} << 40));
  app.get_option("--far-pairs")->default_str("as --windows");
  app.add_option("--seed", a.common.seed, "Seed of the text that the model writes, and of the row sample")
      ->capture_default_str()
      ->type_name("N")
      ->check(whole_number(0, UINT64_MAX));
  app.option_defaults()->group(group);
}

}  // namespace

void add_fit_options(CLI::App& app, FitArguments& arguments) {
  add_transform_options(app, arguments);
  add_code_options(app, arguments);
  add_statistics_options(app, arguments);
  add_curve_options(app, arguments);
  add_collecting_options(app, arguments);
  show_to_experts(
      app,
      "--target-ppl --scope --center --clip --encoder --pareto --text-hashes --check-rows --text --curve-context "
      "--curve-sequences --curves --work-dir --stream-layers --revision --dtype --skip-bad-rows --column --render "
      "--date --seq-len --far-pairs --checkpoint-seconds --own-text --seed --pack");
}

}  // namespace oscar
