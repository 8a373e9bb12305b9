#include "pipeline/verify/verify_source.h"

#include <algorithm>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/hash.h"
#include "base/log.h"
#include "export/served_form.h"
#include "fit/fit.h"
#include "fit/from_fit.h"
#include "layout/left_out.h"
#include "pipeline/common/common_options.h"
#include "pipeline/common/output_files.h"
#include "registry/registry.h"
#include "statistics/statistics.h"
#include "statistics/windowed_layers.h"

namespace oscar {
namespace {

// The statistics file that the bundle records, under its recorded name or under the one that belongs to the bundle.
fs::path statistics_of(const Bundle& bundle, const std::string& directory, const std::string& method) {
  const std::string where = directory + ", provenance";
  const Json record = bundle.provenance.value("statistics", Json::object());
  const std::string recorded = fs::path(json_string(record, "file", where, "")).filename().string();
  const std::string sha256 = json_string(record, "sha256", where, "");
  const fs::path usual = beside_output(directory, ".statistics.safetensors");
  std::string found =
      (recorded.empty() ? usual.filename().string() : printable(recorded)) + " is not beside that bundle";
  for (const fs::path& file : {usual.parent_path() / recorded, usual}) {
    std::error_code ec;
    if (recorded.empty() || sha256.empty() || !fs::is_regular_file(file, ec)) continue;
    if (sha256_file(file) == sha256) return file;
    found = file.string() + " holds other statistics";
  }
  throw InputError("--methods " + method + ": fitting it needs the statistics of " + directory + ", and " + found +
                   "; put them there, or run oscar-fit STATISTICS --method " + method + " -o OTHER and pass --bundle " +
                   "OTHER as well");
}

}  // namespace

std::vector<std::string> methods_to_fit(const std::vector<std::string>& methods,
                                        const std::vector<VerifySource>& sources) {
  std::vector<std::string> names;
  for (const std::string& name : methods) {
    const MethodRow* row = find_method(name);
    if (row == nullptr || !row->needs_bundle() || !row->listed) continue;
    const bool there = std::any_of(sources.begin(), sources.end(), [&](const VerifySource& s) {
      return sources.size() == 1 ? runs_bundle(name, s.bundle->method) : s.facts.source == name;
    });
    if (!there) names.push_back(name);
  }
  return names;
}

VerifySource fit_beside(const std::string& method, const Bundle& bundle, const std::string& directory,
                        c10::Device device) {
  const fs::path file = statistics_of(bundle, directory, method);
  log_info("fitting " + method + " from " + file.string() + ", for comparison");
  Statistics collected = load_statistics(file);
  const std::vector<LeftOutLayer> left_out = read_left_out(bundle.model, collected.model_layers(), directory);
  const Statistics statistics = without_layers(std::move(collected), left_out);
  FitOptions options = usual_options(fitted_method(method));
  options.device = device;
  options.sink = bundle.windows.sink;
  options.recent = bundle.windows.recent;
  if (fitted_method(method).metric_aware()) {
    const Json fitted = bundle.provenance.value("options", Json::object());
    options.context = json_int(fitted, "context", directory, default_context(statistics));
  }
  VerifySource source;
  source.bundle = bundle_from_fit(statistics, options, fit(statistics, options), bundle.windows,
                                  {file.filename().string(), "", tool_version(), false});
  source.facts.row = source.facts.method = method;
  source.facts.kind = kFittedKind;
  source.facts.source = file.filename().string();
  source.facts.scope = source.bundle->scope;
  source.facts.encoder = source.bundle->encoder;
  source.facts.model_fingerprint = source.bundle->model_fingerprint;
  source.facts.fingerprint_matches = true;
  source.facts.clip_source = "bundle";
  source.facts.served_as = lossless_form(*source.bundle).format;
  source.facts.sha256[file.filename().string()] = bundle.provenance["statistics"]["sha256"];
  return source;
}

}  // namespace oscar
