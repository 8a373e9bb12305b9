#include "export/writers.h"

#include <algorithm>
#include <sstream>

#include "bundle/model_card.h"
#include "export/bundle_copy.h"
#include "export/engine_limits.h"
#include "export/export_card.h"

namespace oscar {
namespace {

constexpr const char* kReportName = "report.json";

// "| vLLM 0.32.x and 0.33.x | NVIDIA H100 and H200 |", or why an engine does not serve the bundle.
std::string engines_section(const Bundle& bundle) {
  std::ostringstream out;
  out << "## Engines\n\n| engine, with the plugin of oscar-kv | the adapter was run on |\n|---|---|\n";
  for (const ExportFormat& format : export_formats()) {
    if (format.plugin == nullptr) continue;
    const PluginEngine& engine = format.plugin();
    const auto reason = unsupported(format, bundle);
    out << "| " << engine.name << " " << engine.releases << " | "
        << (reason ? "does not serve this bundle: " + *reason : std::string(engine.gpus)) << " |\n";
  }
  return out.str();
}

std::string hub_card(const ServedForm& form, const ExportOptions& options) {
  std::string revision;
  if (options.model != nullptr) revision = options.model->location().revision;
  std::ostringstream out;
  out << card_head(form.bundle, "2-bit KV cache")
      << (revision.empty() ? "" : "Fitted on revision `" + revision + "` of the base model. ")
      << "After `hf download ORG/NAME`, with the name of this repository, the cache has the bundle and "
         "`hf:ORG/NAME@REVISION` names it:\n\n"
         "```console\noscar-verify --model MODEL --bundle hf:ORG/NAME@REVISION --text TEXT\n"
         "OSCAR_KV_BUNDLE=hf:ORG/NAME@REVISION "
      << vllm_engine().command << " MODEL " << vllm_engine().options << "\n```\n\n`SHA256SUMS` is checked with "
      << "`sha256sum -c`.\n\n"
      << engines_section(form.bundle) << "\n"
      << measured_section(form.format, options.report ? &*options.report : nullptr) << "\n";
  return out.str() + provenance_section(form.bundle);
}

bool is_place(const std::string& text) {
  return text.starts_with("/") || text.starts_with("~/") || text.starts_with("./") || text.starts_with("../");
}

}  // namespace

Json without_places(const Json& report) {
  Json out = report;
  if (out.is_string() && is_place(out.get<std::string>())) return fs::path(out.get<std::string>()).filename().string();
  if (out.is_object()) {
    for (const char* name : {"command", "url"}) out.erase(name);
  }
  if (out.is_structured()) {
    for (Json& part : out) part = without_places(part);
  }
  return out;
}

// A latent's bundle is for vLLM only; others have transformers, at least.
std::optional<std::string> hub_unsupported(const ExportFormat&, const Bundle& bundle) {
  return bundle.latent() ? engine_unsupported(*find_export_format("vllm"), bundle) : std::nullopt;
}

std::string hub_plan(const ServedForm& form, const ExportOptions& options) {
  return "a bundle of " + std::to_string(form.bundle.layers.size()) + " layers with a card" +
         (options.report ? " and its report" : "");
}

std::vector<std::string> write_hub(const ExportFormat&, const ServedForm& form, const fs::path& directory,
                                   const ExportOptions& options) {
  AtomicDirectory target(directory, options.overwrite, checksummed_directory());
  std::vector<std::string> names = copy_bundle(options.bundle, target.path(), "", {kProbeName});  // the probe is text
  const auto write = [&](const std::string& name, const std::string& text) {
    write_file_atomic(target.path() / name, text);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  };
  write(kCardName, hub_card(form, options));
  if (options.report) write(kReportName, dump_json(without_places(*options.report)));
  names = write_checksums(target.path(), names);
  target.commit();
  return names;
}

}  // namespace oscar
