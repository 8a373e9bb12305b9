#include "export/export_report.h"

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/hash.h"
#include "bundle/report_format.h"

namespace oscar {
namespace {

// The entry in the report's `bundles` for exactly these files; null if there is none.
const Json* find_evaluated(const Json& report, const std::string& where,
                           const std::map<std::string, std::string>& bundle_sha256) {
  for (const Json& entry : json_array(report, "bundles", where)) {
    const Json& found = json_object(entry, "sha256", where + ", bundles");
    bool same = true;
    for (const auto& [name, hash] : bundle_sha256) same = same && json_string(found, name.c_str(), where, "") == hash;
    if (same) return &entry;
  }
  return nullptr;
}

void check_form(const Json& evaluated, const std::string& where, const ServedForm& form) {
  const std::string found = json_string(json_object(evaluated, "served_as", where), "format", where + ", served_as");
  if (found == form.format) return;
  // The hub's folder is the bundle itself.
  if (form.format == "hub" &&
      json_array(json_object(evaluated, "served_as", where), "changes", where + ", served_as").empty()) {
    return;
  }
  std::string reason = where + ": evaluates the bundle as " + quote_name(found) + ", and format " + form.format;
  if (form.changes.empty()) {
    throw InputError(reason + " is exported; evaluate what will be served with oscar-verify --as " + form.format);
  }
  throw InputError(reason + " changes it: " + changes_text(form) +
                   "; evaluate what will be served (oscar-verify --as " + form.format +
                   "), or fit what the format carries without loss (oscar-fit --for " + form.format + ")");
}

void check_windows(const Json& report, const std::string& where, const CacheWindows& served) {
  const Json& found = json_object(report, "windows", where);
  const std::int64_t sink = json_int(found, "sink", where + ", windows"),
                     recent = json_int(found, "recent", where + ", windows");
  if (sink == served.sink && recent == served.recent) return;
  const auto text = [](std::int64_t a, std::int64_t b) { return std::to_string(a) + "," + std::to_string(b); };
  throw InputError(where + ": evaluates BF16 windows of " + text(sink, recent) +
                   " tokens, and the bundle is served with " + text(served.sink, served.recent) +
                   "; evaluate it without --windows, or fit it with --windows " + text(sink, recent));
}

void check_verdicts(const Json& report, const Json& evaluated, const std::string& where) {
  const std::string row = json_string(evaluated, "row", where + ", bundles");
  for (const Json& gate : json_array(report, "gates", where)) {
    if (json_string(gate, "method", where + ", gates") != row || json_bool(gate, "pass", where + ", gates", false)) {
      continue;
    }
    throw InputError(where + ": its gate " + quote_name(json_string(gate, "name", where + ", gates")) +
                     " failed, so it cannot stand beside exported files; export without --report, or fit a bundle "
                     "that keeps the gate");
  }
  for (const Json& check : json_array(report, "self_checks", where)) {
    if (json_bool(check, "pass", where + ", self_checks", true)) continue;
    throw InputError(where + ": its check " + quote_name(json_string(check, "name", where + ", self_checks")) +
                     " failed, so its numbers cannot be relied on; find out why before exporting with it");
  }
}

}  // namespace

std::map<std::string, std::string> bundle_hashes(const fs::path& directory) {
  std::map<std::string, std::string> hashes;
  for (const char* name : {kManifestName, kRotationsName}) hashes[name] = sha256_file(directory / name);
  return hashes;
}

void check_export_report(const Json& report, const std::string& where, const ServedForm& form,
                         const std::map<std::string, std::string>& bundle_sha256) {
  if (const std::int64_t version = json_int(report, "format_version", where); version != kReportFormatVersion) {
    throw InputError(where + ": has report format " + std::to_string(version) + ", this program reads format " +
                     std::to_string(kReportFormatVersion) + "; evaluate the bundle again with oscar-verify --as " +
                     form.format);
  }
  const std::string fingerprint = json_string(json_object(report, "model", where), "fingerprint", where);
  if (!form.bundle.model_fingerprint.empty() && !serves_checkpoint(form.bundle, fingerprint)) {
    throw InputError(where + ": is the report of another model (fingerprint " + quote_name(fingerprint) +
                     ", the bundle has " + form.bundle.model_fingerprint + ")");
  }
  const Json* evaluated = find_evaluated(report, where, bundle_sha256);
  if (evaluated == nullptr) {
    throw InputError(where +
                     ": evaluates another bundle (the hashes of its files differ from this one's); evaluate this "
                     "bundle with oscar-verify --as " +
                     form.format);
  }
  check_form(*evaluated, where, form);
  check_windows(report, where, form.bundle.windows);
  check_verdicts(report, *evaluated, where);
}

}  // namespace oscar
