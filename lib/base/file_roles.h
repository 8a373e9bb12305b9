// Checks input and output paths before any work starts. An output must not be an input, and two outputs must differ.
// The check sees through links and different spellings of a path.
#pragma once

#include <string>
#include <vector>

#include "base/files.h"

namespace oscar {

class FileRoles {
 public:
  void input(const fs::path& path);  // a file; a missing one is ignored
  void inputs(const std::vector<fs::path>& paths);
  void output(const fs::path& path, const std::string& option);            // a file
  void output_directory(const fs::path& path, const std::string& option);  // everything in it

  // UsageError that names the options and the file.
  void check() const;

 private:
  struct Output {
    fs::path path;
    std::string option;
    bool directory;
  };
  std::vector<fs::path> inputs_;
  std::vector<Output> outputs_;
};

}  // namespace oscar
