// oscar-verify: measures quality of KV-cache methods against the BF16 cache on the user's model and text.
#include <algorithm>
#include <ctime>

#include "apps/options/help.h"
#include "apps/options/shared_options.h"
#include "apps/options/verify_arguments.h"
#include "apps/output/write_output.h"
#include "apps/process_setup.h"
#include "base/columns.h"
#include "base/errors.h"
#include "base/log.h"
#include "bundle/bundle_files.h"
#include "checkpoint/model_location.h"
#include "checkpoint/model_name.h"
#include "model/device.h"
#include "pipeline/common/common_options.h"
#include "pipeline/common/device_choice.h"
#include "pipeline/common/output_files.h"
#include "pipeline/common/rank_run.h"
#include "pipeline/verify/verify_source.h"
#include "registry/registry.h"
#include "verify/method_list.h"
#include "verify/plan.h"
#include "verify/verification.h"
#include "verify/verify_phases.h"

namespace oscar {
namespace {

constexpr const char* kExample =
    "oscar-verify --model Qwen/Qwen3-8B --bundle bundle --text heldout.txt --html report.html\n"
    "oscar-verify --model Qwen/Qwen3-8B --bundle bundle --as sglang-branch --text heldout.txt --report report.json\n"
    "oscar-verify --model Qwen/Qwen3-8B --served http://localhost:8000 --text heldout.txt\n"
    "oscar-verify --bundle bundle --check-only --model Qwen/Qwen3-8B\n"
    "oscar-verify methods\n"
    "oscar-verify plan --model Qwen/Qwen3-8B --memory 24GiB";

int check_only(const VerifySource& source, const Checkpoint* checkpoint, bool json) {
  const std::vector<std::string> lines = check_verify_source(source, checkpoint);
  if (json) {
    print_result(dump_json(Json{{"sound", true}, {"source", source.facts.source}, {"checked", lines}}));
    return 0;
  }
  for (const std::string& line : lines) print_result(wrapped("ok  " + line));
  print_result(source.facts.source + " is sound\n");
  return 0;
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d", ::localtime_r(&now, &local))};
}

void write_reports(const VerifyArguments& a, const VerifyReport& report) {
  if (!a.report.empty()) write_output(a.report, report_json(report));
  if (!a.html.empty()) write_output(a.html, report_html(report));
  if (!a.markdown.empty()) write_output(a.markdown, report_markdown(report));
  if (!a.junit.empty()) write_output(a.junit, report_junit(report));
}

// The inputs of this run; outputs must differ from them.
FileRoles file_roles(const VerifyArguments& a, const Checkpoint* model) {
  FileRoles roles;
  for (const std::string& file : {a.baseline, a.common.config}) roles.input(file);
  roles.inputs({a.texts.begin(), a.texts.end()});
  for (const std::string& bundle : a.bundles) roles.inputs(bundle_files(bundle));
  for (std::size_t from = 0; from < a.rotations.size();) {
    const std::size_t comma = std::min(a.rotations.find(',', from), a.rotations.size());
    roles.input(a.rotations.substr(from, comma - from));
    from = comma + 1;
  }
  if (model != nullptr) roles.inputs(checkpoint_files(model->location()));
  return roles;
}

void check_addition(const VerifyArguments& a) {
  if (!a.add_checkpoint) return;
  if (a.bundles.size() != 1) throw UsageError("--add-checkpoint takes one --bundle");
  if (a.request.no_gate || !a.request.served.empty()) {
    throw UsageError("--add-checkpoint goes by the gates of the bundle: drop --no-gate and --served");
  }
}

void check_arguments(const VerifyArguments& a, const CLI::App& app) {
  if (a.check_only) {
    refuse_other_options(app, {"--model", "--revision", "--bundle", "--rotations", "--clip", "--as", "--check-only"},
                         "is not used by --check-only, which measures nothing: drop one of them");
    if (a.bundles.empty() && a.rotations.empty()) throw UsageError("--check-only needs --bundle or --rotations");
    return;
  }
  check_addition(a);
  if (a.bundles.empty() && a.rotations.empty()) require_known_methods(a.request.methods);
  if (a.common.model.empty() || a.texts.empty()) {
    throw UsageError("--model and --text are required, unless --check-only is given (oscar-verify --help explains)");
  }
}

std::vector<VerifySource> load_sources(const VerifyArguments& a, const Checkpoint* model) {
  std::vector<VerifySource> sources;
  for (const std::string& bundle : a.bundles)
    sources.push_back(load_verify_source({bundle, "", a.clip, a.form, a.add_checkpoint}, model));
  if (!a.rotations.empty()) sources.push_back(load_verify_source({"", a.rotations, a.clip, a.form}, model));
  if (sources.empty()) load_verify_source({"", "", a.clip, a.form}, model);  // refuses --clip and --as without a bundle
  return sources;
}

std::int64_t longest_sequence(const VerifyRequest& request) {
  std::int64_t longest = request.context;
  if (request.tasks.empty()) return longest;
  for (const std::int64_t length : request.task_lengths) longest = std::max(longest, length);
  return longest;
}

// Fills in the request. windows: from the first bundle, unless an option gives them.
void fill_request(VerifyArguments& a, const std::vector<VerifySource>& sources, Ranks* ranks) {
  VerifyRequest& request = a.request;
  request.texts.assign(a.texts.begin(), a.texts.end());
  request.baseline = a.baseline;
  if (a.add_checkpoint && !request.gates.any()) request.gates.max_kl = kDefaultMaxKl;  // named: it fails if undecided
  request.work_dir = a.work_dir;
  if (a.work_dir.empty() && !a.report.empty()) request.work_dir = a.report + ".work";
  request.prefill = a.path != "decode";
  request.decode = a.path != "prefill";
  if (!a.windows.empty()) {
    request.windows = parse_windows(a.windows);
  } else if (!sources.empty()) {
    request.windows = sources.front().bundle->windows;
    for (const VerifySource& source : sources) {
      const CacheWindows& own = source.bundle->windows;
      if (own.sink == request.windows.sink && own.recent == request.windows.recent) continue;
      log_warning("the bundles have different BF16 windows; all are evaluated with " +
                  std::to_string(request.windows.sink) + "," + std::to_string(request.windows.recent) +
                  ", the windows of the first (--windows chooses others)");
      break;
    }
  }
  request.seed = a.common.seed;
  request.tool_version = tool_version();
  request.ranks = ranks;
}

void choose_decoder(VerifyArguments& a, Ranks* ranks) {
  const Timeline::Phase starting(a.request.timeline, verify_phase::kStarting);
  DecoderOptions& decoder = a.request.decoder;
  decoder.device = choose_device(a.common, ranks);
  decoder.dtype = choose_dtype(a.common, decoder.device);
  decoder.prefetch = decoder.stream_layers;
  a.request.bfloat16_noise = narrow_products(true, decoder.device).has_value();
  if (decoder.stream_layers && a.request.decode) {
    log_warning("--stream-layers with --path " + a.path + " reads the weights of all layers once for every token");
  }
}

// The methods of --methods that are made from the statistics of the first bundle.
std::vector<VerifySource> fit_comparisons(const VerifyArguments& a, const std::vector<VerifySource>& sources) {
  std::vector<VerifySource> fitted;
  if (a.bundles.empty()) return fitted;
  for (const std::string& name : methods_to_fit(a.request.methods, sources)) {
    fitted.push_back(fit_beside(name, *sources.front().bundle, a.bundles.front(), a.request.decoder.device));
  }
  return fitted;
}

// The checkpoint of a run whose gates passed becomes one that the bundle may serve.
void admit_checkpoint(const VerifyArguments& a, const VerifySource& source, const Checkpoint& model,
                      const VerifyReport& report) {
  const fs::path bundle = a.bundles.front();
  if (!report.pass) return log_info(bundle.string() + ": the checkpoint was not added, because a gate failed");
  if (source.facts.fingerprint_matches) return log_info(bundle.string() + ": was fitted on this checkpoint");
  const auto row = std::ranges::find_if(report.methods, &MethodReport::candidate);
  add_checkpoint(bundle, {model.fingerprint(), plain_model_name(model.location().name), row->quality.kl.mean});
  log_info("added " + model.location().name + " to " + (bundle / kCheckpointsName).string());
}

// Measures, writes the reports, and returns the exit code. told: this process prints.
int measure(VerifyArguments& a, Verification& verification, const OutputFiles& outputs, bool told,
            const std::vector<VerifySource>& sources, const Checkpoint& model) {
  if (told) outputs.probe();
  VerifyReport report = verification.run();
  report.date = today();
  {
    const Timeline::Phase reporting(a.request.timeline, verify_phase::kReport);
    if (told) write_reports(a, report);
    if (a.request.ranks != nullptr) a.request.ranks->barrier();  // the reports are written
    verification.finish();
  }
  if (told) {
    const Timeline::Phase reporting(a.request.timeline, verify_phase::kReport);
    if (!outputs.to_stdout()) {
      print_result(a.common.json      ? report_json(report)
                   : a.common.verbose ? report_details(report)
                                      : report_table(report));
    }
    for (const std::string& file : outputs.names()) log_info("wrote " + file);
  }
  log_timeline(a.request.timeline);
  log_device_memory(a.request.decoder.device);
  log_other_timelines(a.request.timeline, a.request.ranks);
  if (!told) return 0;
  if (a.add_checkpoint) admit_checkpoint(a, sources.front(), model, report);
  return static_cast<int>(report.pass ? ExitCode::kDone : ExitCode::kGateFailed);
}

int run_verify(VerifyArguments& a, const CLI::App& app, Ranks* ranks) {
  std::optional<Timeline::Phase> phase(std::in_place, a.request.timeline, verify_phase::kStarting);
  check_arguments(a, app);
  const OutputFiles outputs(
      {{"--report", a.report}, {"--html", a.html}, {"--markdown", a.markdown}, {"--junit", a.junit}});
  const bool told = is_first_rank(ranks);
  if (!a.common.dry_run && !a.check_only && told) outputs.check(a.common);
  std::jthread device;
  if (!a.check_only) device = start_device(a.common, ranks);  // while files are read
  std::optional<Checkpoint> checkpoint;
  if (!a.common.model.empty()) checkpoint = Checkpoint::open(locate_model(a.common.model, a.common.revision));
  const Checkpoint* model = checkpoint ? &*checkpoint : nullptr;
  FileRoles roles = file_roles(a, model);
  outputs.add_to(roles);
  roles.check();
  phase.emplace(a.request.timeline, verify_phase::kReading);
  const std::vector<VerifySource> sources = load_sources(a, model);
  if (a.check_only) {
    if (!told) return 0;
    if (sources.size() != 1) throw UsageError("--check-only takes one bundle");
    return check_only(sources.front(), model, a.common.json);
  }
  fill_request(a, sources, ranks);
  checkpoint->set_run_length(longest_sequence(a.request));
  for (const VerifySource& source : sources) {
    const std::string note = distance_note(source.facts, longest_sequence(a.request));
    if (!note.empty() && told) log_warning(note);
  }
  choose_decoder(a, ranks);
  const LazyTokenizer tokenizer(model->location().directory / "tokenizer.json");
  std::vector<EvaluatedBundle> evaluated;
  for (const VerifySource& source : sources) evaluated.push_back({&*source.bundle, source.facts, {}});
  const std::vector<VerifySource> fitted = fit_comparisons(a, sources);
  for (const VerifySource& source : fitted) evaluated.push_back({&*source.bundle, source.facts, source.facts.row});
  if (!a.common.dry_run) require_alike(ranks, a.request.decoder.device);
  Verification verification(*model, tokenizer, std::move(evaluated), a.request);
  phase.reset();
  if (!a.common.dry_run) return measure(a, verification, outputs, told, sources, *model);
  if (told) print_result(verification.plan_text());
  return 0;
}

// Refuses options without effect.
void refuse_idle_options(const CLI::App& app, const VerifyArguments& a) {
  const std::vector<std::string>& comparisons = a.request.comparisons;
  if (std::find(comparisons.begin(), comparisons.end(), "bytes") == comparisons.end()) {
    refuse_options(app, {"--bits"}, "is for --compare bytes, and this run does not compare so");
  }
  if (a.request.tasks.empty()) {
    refuse_options(app, {"--task-lengths", "--task-prompts"}, "is for --tasks, and none was asked for");
  }
  if (a.request.served.empty()) {
    refuse_options(app, {"--served-tokens", "--served-requests", "--served-timeout"},
                   "is for --served, and no server was given");
  }
  if (a.common.model.empty()) refuse_options(app, {"--revision"}, "is for --model, and none was given");
}

int run_methods(const VerifyArguments& a) {
  std::optional<Checkpoint> checkpoint;
  if (!a.common.model.empty()) checkpoint = Checkpoint::open(locate_model(a.common.model, a.common.revision));
  const ModelConfig* model = checkpoint ? &checkpoint->config() : nullptr;
  const std::vector<ListedMethod> methods = list_methods(model);
  print_result(a.common.json ? method_list_json(methods) : method_list_table(methods, model));
  return 0;
}

int run_plan(const VerifyArguments& a) {
  if (a.common.model.empty()) throw UsageError("plan needs --model");
  const Checkpoint checkpoint = Checkpoint::open(locate_model(a.common.model, a.common.revision));
  CacheWindows windows;
  if (!a.windows.empty()) windows = parse_windows(a.windows);
  const ModelConfig& model = checkpoint.config();
  const double bits = a.plan_bits > 0.0 ? a.plan_bits : usual_bits(model.is_latent());
  const MemoryPlan plan =
      plan_memory(model, parse_memory(a.memory), checkpoint.weight_bytes(), a.plan_contexts, windows, bits);
  print_result(a.common.json ? plan_json(plan) : plan_table(plan));
  return 0;
}

// The state directory and resumption do not change the results.
std::vector<std::string> without_state_options(const std::vector<std::string>& arguments) {
  std::vector<std::string> kept;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--work-dir") {
      ++i;
    } else if (arguments[i] != "--resume" && !arguments[i].starts_with("--work-dir=")) {
      kept.push_back(arguments[i]);
    }
  }
  return kept;
}

int main_verify(int argc, char** argv) {
  VerifyArguments a;
  CLI::App app{"Measure a bundle, and the methods it competes with, against the BF16 cache.", "oscar-verify"};
  set_up_app(app, a.common, kExample);
  add_model_options(app, a.common, false);
  app.get_option("--model")->description(
      "Model directory, or org/name in the Hugging Face cache (required, but for --check-only)");
  add_source_options(app, a);
  add_measurement_options(app, a);
  add_report_options(app, a);
  show_to_experts(app,
                  "--column --render --date --revision --dtype --seed --rotations --clip --served-tokens "
                  "--served-requests --served-timeout --compare --bits --windows --decode-last --stream-layers "
                  "--task-lengths --task-prompts --layer-sequences --bootstrap --add-checkpoint --markdown --junit "
                  "--baseline --work-dir --resume --max-kl-p999 --min-niah --max-ppl-ratio --max-kl-increase");
  CLI::App* plan = app.add_subcommand("plan", "Which method, context and batch fit in a memory, from geometry only");
  plan->add_option("--model", a.common.model, "Model directory, or org/name in the Hugging Face cache (required)")
      ->type_name("DIR|org/name");
  plan->add_option("--revision", a.common.revision, "Branch, tag or commit in the Hugging Face cache");
  plan->add_option("--windows", a.windows, "BF16 tokens at the start and at the end (default: 64,256)")
      ->type_name("SINK,RECENT");
  plan->add_option("--memory", a.memory, "Memory for weights and caches, as 24G, 24GiB or 80GB")->required();
  plan->add_option("--contexts", a.plan_contexts, "Contexts in tokens (default: 4096 and up)")
      ->delimiter(',')
      ->check(whole_number(1, kMostTokens));
  plan->add_option("--bits", a.plan_bits, "Bits per element of waterfill (default: 2.25, 4 for latent attention)")
      ->type_name("B")
      ->check(real_number(0.25, 4.5));
  plan->fallthrough();
  CLI::App* methods = app.add_subcommand("methods", "List the methods with their bits, windows and sources");
  methods
      ->add_option("--model", a.common.model, "Model whose heads the bits and limits are of (default: 8 of size 128)")
      ->type_name("DIR|org/name");
  methods->add_option("--revision", a.common.revision, "Branch, tag or commit in the Hugging Face cache");
  methods->fallthrough();
  app.require_subcommand(0, 1);
  std::vector<std::string> arguments(argv, argv + argc);
  arguments[0] = "oscar-verify";  // independent of the path of the program
  std::vector<std::string> again = arguments;
  if (std::find(again.begin(), again.end(), "--resume") == again.end()) again.push_back("--resume");
  a.request.command = shell_command(without_state_options(arguments));
  return run_app(app, a.common, argc, argv, [&] {
    if (plan->parsed()) {
      refuse_other_options(app, {"--model", "--revision", "--windows"}, "is not used by plan: drop it");
      return run_plan(a);
    }
    if (methods->parsed()) {
      refuse_other_options(app, {"--model", "--revision"}, "is not used by methods: drop it");
      return run_methods(a);
    }
    refuse_idle_options(app, a);
    for (std::string& bundle : a.bundles) bundle = locate_bundle(bundle).string();
    Timeline timeline(verify_phase::all());
    if (a.common.verbose) a.request.timeline = &timeline;
    a.request.resume_command = as_started(shell_command(again));
    return run_as_rank(a.request.resume_command, [&](Ranks* ranks) { return run_verify(a, app, ranks); });
  });
}

}  // namespace
}  // namespace oscar

int main(int argc, char** argv) { oscar::end_process(oscar::main_verify(argc, argv)); }
