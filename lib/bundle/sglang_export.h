// Rotation files for SGLang from a bundle: version 1 (one matrix a layer), version 2 (one for each KV head) and version
// 3 (transforms that are not orthogonal, centred keys; layout uniform), with a model card, the serve command and
// checksums.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bundle/served_form.h"

namespace oscar {

struct ExportOptions {
  std::string format;                                // sglang | sglang-v2 | sglang-v3
  std::optional<Json> report;                        // report.json of oscar-verify, for the card's measured numbers
  std::map<std::string, std::string> bundle_sha256;  // of the bundle's files; the report must have judged these
  std::string report_name;                           // where it came from, for messages
  std::string model_path;                            // of the card's serve command (export_card.h)
  std::string tool_version;
  bool overwrite = false;
};

// Formats that export_bundle writes, in the order they are listed to people.
std::vector<std::string> export_formats();

// Refusals that need no writing: UsageError for an unknown format (with the list), InputError for a bundle that the
// format cannot carry (with the nearest one that can) or a report of something else (export_report.h). Returns what
// will be served.
ServedForm check_export(const Bundle& bundle, const ExportOptions& options);

// Writes the directory whole or not at all; returns the names of its files. Every rotation is read back and compared
// bit for bit before the directory appears.
std::vector<std::string> export_bundle(const Bundle& bundle, const fs::path& directory, const ExportOptions& options);

}  // namespace oscar
