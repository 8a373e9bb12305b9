// Outputs that are one file: their place, and checks against data loss. "-" is standard output.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/file_roles.h"
#include "pipeline/common/common_options.h"

namespace oscar {

constexpr const char* kStandardOutput = "-";

// The file or folder beside an output folder, with an ending: "bundle" or "bundle/" -> "bundle.work".
fs::path beside_output(const std::string& output, const char* ending);

// Files that a run will write, by the option that named them; empty names are ignored.
class OutputFiles {
 public:
  explicit OutputFiles(std::vector<std::pair<std::string, std::string>> by_option);

  // UsageError if two options name one file or standard output, if a file exists without --overwrite, or if it is not a
  // regular file.
  void check(const CommonOptions& common) const;
  void add_to(FileRoles& roles) const;
  void probe() const;  // EnvironmentError if one of them could not be written; leaves only folders

  bool to_stdout() const;  // one of them is "-": nothing else may be printed there
  const std::vector<std::string>& names() const { return names_; }  // without "-"

 private:
  std::vector<std::pair<std::string, std::string>> files_;
  std::vector<std::string> names_;
};

// UsageError for an output that cannot be standard output.
void require_no_stdout(const std::string& output, const char* what);

}  // namespace oscar
