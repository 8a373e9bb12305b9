// Checks whether a report's numbers may accompany exported files. It must have evaluated the same bundle in the same
// form, without failures.
#pragma once

#include <map>
#include <string>

#include "export/served_form.h"

namespace oscar {

// Names and SHA-256 of a bundle's files: the manifest and the rotations. EnvironmentError or InputError for unreadable
// files.
std::map<std::string, std::string> bundle_hashes(const fs::path& directory);

// report: report.json of oscar-verify; where: its name, for messages; bundle_sha256: hashes of the exported bundle.
// InputError with one sentence if the report has another format version, or is for another model, another bundle or
// another form. The last message says what the form changes and which fit is lossless. InputError also if a check or a
// gate of this bundle failed.
void check_export_report(const Json& report, const std::string& where, const ServedForm& form,
                         const std::map<std::string, std::string>& bundle_sha256);

}  // namespace oscar
