// A directory that appears whole or not at all: built beside its target and renamed.
#pragma once

#include <string>

#include "base/files.h"

namespace oscar {

class AtomicDirectory {
 public:
  // `marker` is a file name that marks directories of this kind. UsageError when the target exists and overwrite is
  // false, or when it exists, is not empty and has no marker: other people's directories are never replaced.
  AtomicDirectory(const fs::path& target, bool overwrite, const std::string& marker);
  ~AtomicDirectory();  // without commit(): removes what was built, the target is as before
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;

  const fs::path& path() const { return building_; }  // write the files here
  void commit();

  // The same checks alone, for callers that have long work before them.
  static void require_usable(const fs::path& target, bool overwrite, const std::string& marker);

 private:
  fs::path target_, building_;
};

}  // namespace oscar
