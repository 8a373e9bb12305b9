#include "pipeline/common/output_files.h"

#include "base/errors.h"
#include "base/output_file.h"

namespace oscar {

fs::path beside_output(const std::string& output, const char* ending) {
  fs::path path = output;
  if (path.filename().empty()) path = path.parent_path();  // "bundle/"
  return path.string() + ending;
}

OutputFiles::OutputFiles(std::vector<std::pair<std::string, std::string>> by_option) {
  for (auto& [option, file] : by_option) {
    if (file.empty()) continue;
    if (file != kStandardOutput) names_.push_back(file);
    files_.emplace_back(std::move(option), std::move(file));
  }
}

void OutputFiles::check(const CommonOptions& common) const {
  std::string printed = common.json ? "--json" : "";
  for (const auto& [option, file] : files_) {
    if (file != kStandardOutput) {
      require_output_file(file, common.overwrite);
    } else if (!printed.empty()) {
      throw UsageError(printed + " and " + option + " - both write to standard output; name a file for one of them");
    } else {
      printed = option + " -";
    }
  }
}

void OutputFiles::add_to(FileRoles& roles) const {
  for (const auto& [option, file] : files_) {
    if (file != kStandardOutput) roles.output(file, option);
  }
}

void OutputFiles::probe() const {
  for (const std::string& file : names_) {
    const AtomicFile probe(file);
  }
}

bool OutputFiles::to_stdout() const { return names_.size() < files_.size(); }

void require_no_stdout(const std::string& output, const char* what) {
  if (output == kStandardOutput) {
    throw UsageError(std::string("-o -: ") + what + " cannot be written to standard output; name a path");
  }
}

}  // namespace oscar
