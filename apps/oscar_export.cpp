// oscar-export: writes the files that serving engines load, from a bundle of oscar-fit.
#include "apps/options/shared_options.h"
#include "base/errors.h"
#include "base/log.h"
#include "bundle/bundle_files.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/model_location.h"
#include "export/export_format.h"
#include "export/export_report.h"
#include "pipeline/common/output_files.h"
#include "pipeline/common/rank_run.h"

namespace oscar {
namespace {

constexpr const char* kExample =
    "oscar-export bundle --format vllm --model Qwen/Qwen3-8B --report report.json -o serving\n"
    "oscar-export bundle --format sglang-branch-v2 -o serving --model Qwen/Qwen3-8B\n"
    "oscar-export bundle --format transformers --report report.json -o serving\n"
    "oscar-export bundle --format absorbed -o checkpoint --model Qwen/Qwen3-8B";

struct Arguments {
  CommonOptions common;
  std::string bundle, format, report, dtype = "auto";
  ExportOptions options;
};

void print_files(const Arguments& a, const std::vector<std::string>& files, const std::vector<std::string>& changes,
                 const std::string& note) {
  if (a.common.json) {
    print_result(
        dump_json(Json{{"format", a.format}, {"directory", a.common.output}, {"files", files}, {"changes", changes}}));
    return;
  }
  print_summary("format " + a.format + " in " + a.common.output + ":\n");
  for (const std::string& name : files) print_summary("  " + name + "\n");
  print_summary(note + "\n");
}

// Outputs must not overwrite inputs.
void check_roles(const Arguments& a, const Checkpoint* model) {
  FileRoles roles;
  roles.inputs(bundle_files(a.bundle));
  roles.inputs({a.report, a.common.config});
  if (model != nullptr) roles.inputs(checkpoint_files(model->location()));
  roles.output_directory(a.common.output, "-o");
  roles.check();
}

// Warns once if the export differs from the fit, and names the fit that is lossless.
void warn_of_changes(const ServedForm& form, bool evaluated) {
  if (form.changes.empty()) return;
  log_warning("format " + form.format + " changes the bundle: " + changes_text(form) + "; " +
              (evaluated ? "" : "evaluate what will be served with oscar-verify --as " + form.format + ", or ") +
              "fit what the format carries without loss with oscar-fit --for " + form.format);
}

// The model of --model, checked against the bundle; null without one.
std::optional<Checkpoint> open_model(Arguments& a, const Bundle& bundle, const ExportFormat& format) {
  if (format.needs_model() && a.common.model.empty()) {
    throw UsageError("--format " + format.id + " needs --model, " + format.model_use);
  }
  if (!format.has_card && !a.report.empty()) {
    throw UsageError("--report is for formats with a model card; " + format.id + " keeps the model's own");
  }
  if (a.common.model.empty()) return std::nullopt;
  Checkpoint checkpoint = Checkpoint::open(locate_model(a.common.model, a.common.revision));
  if (format.rewrites_model) {
    check_roles(a, &checkpoint);
    format.check_model(format, checkpoint, bundle);
    return checkpoint;
  }
  const auto faults = check_bundle_model(bundle, checkpoint.config(), checkpoint.fingerprint());
  if (!faults.empty()) throw InputError(a.bundle + " does not belong to the model: " + faults.front());
  if (format.check_model != nullptr) format.check_model(format, checkpoint, bundle);
  // A folder name is valid only on the author's machine, and cards are shared.
  const ModelLocation& location = checkpoint.location();
  if (!location.revision.empty()) a.options.model_path = location.name;
  return checkpoint;
}

int run_export(Arguments& a) {
  require_no_stdout(a.common.output, "an export, which is a folder,");
  a.bundle = locate_bundle(a.bundle).string();
  check_roles(a, nullptr);
  a.options.overwrite = a.common.overwrite;
  a.options.tool_version = tool_version();
  a.options.bundle = a.bundle;
  if (a.dtype != "auto") a.options.dtype = a.dtype == "bfloat16" ? DType::kBF16 : DType::kF32;
  const Bundle bundle = load_bundle(a.bundle);
  if (!a.report.empty()) a.options.report = read_json(a.report);
  const ExportFormat& format = written_format(a.format);
  const ServedForm form = served_form(bundle, format.id);
  const std::optional<Checkpoint> model = open_model(a, bundle, format);
  a.options.model = model ? &*model : nullptr;
  if (a.options.report) check_export_report(*a.options.report, a.report, form, bundle_hashes(a.bundle));
  warn_of_changes(form, a.options.report.has_value());
  if (a.common.dry_run) {
    const std::string plan = format.plan(form, a.options);
    print_result(
        a.common.json
            ? dump_json(Json{{"dry_run", true}, {"format", a.format}, {"directory", a.common.output}, {"plan", plan}})
            : "would write " + plan + " to " + a.common.output + "\n");
    return 0;
  }
  print_files(a, format.write(format, form, a.common.output, a.options), form.changes, format.note);
  return 0;
}

// "sglang-branch (...), ..., absorbed (...)": the writable formats.
std::string format_help() {
  std::string text;
  for (const ExportFormat& format : export_formats()) {
    if (format.write != nullptr) text += (text.empty() ? "" : ", ") + format.id + " (" + format.summary + ")";
  }
  return text;
}

int main_export(int argc, char** argv) {
  Arguments a;
  CLI::App app{"Write the files that a serving engine loads, from a bundle.", "oscar-export"};
  set_up_app(app, a.common, kExample);
  app.add_option("bundle", a.bundle, "Bundle of oscar-fit")->required()->type_name("DIR|hf:org/name");
  app.add_option("--format", a.format, format_help())->required();
  app.add_option("--report", a.report,
                 "report.json of oscar-verify, for the card's measured numbers; it must have evaluated this bundle as "
                 "this format serves it (--as), and every gate must have passed")
      ->type_name("FILE");
  app.add_option("--dtype", a.dtype,
                 "Of the tensors that absorbed changes (auto: float32, bfloat16 where they were quantized)")
      ->check(CLI::IsMember({"auto", "bfloat16", "float32"}))
      ->capture_default_str();
  app.add_option("--model", a.common.model,
                 "The model: checked against the bundle, and named in the serve command (required for absorbed, vllm "
                 "and sglang)")
      ->type_name("DIR|org/name");
  app.add_option("--revision", a.common.revision, "Branch, tag or commit in the Hugging Face cache");
  add_output_options(app, a.common, true);
  return run_app(app, a.common, argc, argv, [&] {
    require_alone("oscar-export");
    const ExportFormat* format = find_export_format(a.format);
    if (format == nullptr || !format->rewrites_model) {
      refuse_options(app, {"--dtype"}, "is for --format absorbed: drop it");
    }
    if (a.common.model.empty()) refuse_options(app, {"--revision"}, "is for --model, and none was given");
    return run_export(a);
  });
}

}  // namespace
}  // namespace oscar

int main(int argc, char** argv) { return oscar::main_export(argc, argv); }
