// What a command reads and what it writes, to be checked before any work: an output is never an input, and two outputs
// are never one, by whatever names, links and spellings they were given.
#pragma once

#include <string>
#include <vector>

#include "base/files.h"

namespace oscar {

class FileRoles {
 public:
  void input(const fs::path& path);  // a file; absent ones are ignored
  void inputs(const std::vector<fs::path>& paths);
  void output(const fs::path& path, const std::string& option);            // a file
  void output_directory(const fs::path& path, const std::string& option);  // all that is in it

  // UsageError naming the options and the file.
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
