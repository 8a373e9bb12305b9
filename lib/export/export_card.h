// README.md of an export: the fit, the measurements and the command that serves it.
#pragma once

#include <string>
#include <vector>

#include "bundle/bundle.h"

namespace oscar {

struct ExportCard {
  std::string format;                // id of a row of export_formats()
  int version = 1;                   // of the rotation files: 1, 2 or 3
  std::string key_file, value_file;  // names in the export's directory
  std::string model_path;            // for the serve command: org/name; empty: the bundle's name
  std::vector<std::string> changes;  // changes that the format makes to the fitted bundle
};

// The model in a serve command: org/name, or a placeholder path. model_path: as in ExportCard.
std::string served_model(const Bundle& bundle, const std::string& model_path);

// Explains the placeholder path; empty for every other model.
std::string unknown_folder_note(const std::string& model);

// The section "Measured": the methods in a report.json of oscar-verify. If null, how to get one.
std::string measured_section(const std::string& format, const Json* report);

// At most 80 lines. bundle: in its target format (served_form.h). report: report.json of oscar-verify, or null; then
// the card says that no numbers were given.
std::string export_card(const Bundle& bundle, const ExportCard& card, const Json* report);

// Environment variables and command line for SGLang with the INT2 cache (names as in its OSCAR branch).
std::string branch_serve_command(const Bundle& bundle, const ExportCard& card);

}  // namespace oscar
