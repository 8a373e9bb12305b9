// README.md of an export: what was fitted, what was measured, and the command that serves it.
#pragma once

#include <string>
#include <vector>

#include "bundle/bundle.h"

namespace oscar {

struct ExportCard {
  std::string format;                // id of a row of export_formats()
  int version = 1;                   // of the rotation files: 1, 2 or 3
  std::string key_file, value_file;  // names in the export's directory
  std::string model_path;            // of the serve command: org/name; empty: by the bundle's name
  std::vector<std::string> changes;  // what the format changed of the bundle as fitted
};

// The model of a serve command: org/name, or a path that stands for a directory. model_path: as ExportCard has it.
std::string served_model(const Bundle& bundle, const std::string& model_path);

// What a path that nobody knows stands for; empty for every other model.
std::string unknown_folder_note(const std::string& model);

// The section "Measured": the methods of a report.json of oscar-verify, or, where it is null, how to get one.
std::string measured_section(const std::string& format, const Json* report);

// At most 80 lines. bundle: as it is served (served_form.h). report: report.json of oscar-verify, or null (the card
// then says that no numbers were given).
std::string export_card(const Bundle& bundle, const ExportCard& card, const Json* report);

// Environment variables and command line for SGLang with the INT2 cache (names as in its OSCAR branch).
std::string sglang_serve_command(const Bundle& bundle, const ExportCard& card);

}  // namespace oscar
