// May the numbers of a report stand beside exported files? Only where the report judged the same bundle in the same
// form, and nothing in it failed.
#pragma once

#include <map>
#include <string>

#include "export/served_form.h"

namespace oscar {

// Names and sha256 of the files that a bundle is made of: the manifest and the rotations. EnvironmentError or
// InputError for files that cannot be read.
std::map<std::string, std::string> bundle_hashes(const fs::path& directory);

// report: report.json of oscar-verify; where: its name, for messages; bundle_sha256: of the bundle that is exported.
// InputError, each with one sentence, for the report of another model, of another bundle, of another form than the one
// that is exported (with what the form changes and the fit that loses nothing), or with a gate of this bundle, or a
// check, that failed.
void check_export_report(const Json& report, const std::string& where, const ServedForm& form,
                         const std::map<std::string, std::string>& bundle_sha256);

}  // namespace oscar
