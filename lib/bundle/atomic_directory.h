// A directory that appears whole or not at all: built beside its target (base/temporary.h) and renamed.
#pragma once

#include <functional>
#include <set>
#include <string>

#include "base/files.h"

namespace oscar {

// What a command writes as a directory, and how it knows its own again.
struct DirectoryKind {
  std::string marker;  // a file that every directory of this kind has
  // Relative names of the files that were written into such a directory, from what its own records list.
  std::function<std::set<std::string>(const fs::path& directory)> own_files;
};

// Only names that stay inside the directory are kept: relative, without empty, "." or ".." parts.
std::set<std::string> names_inside(const std::set<std::string>& names);

class AtomicDirectory {
 public:
  // UsageError when the target exists and overwrite is false, or when it exists, is not empty and holds anything but
  // the files of a directory of this kind: other people's files are never replaced or removed.
  AtomicDirectory(const fs::path& target, bool overwrite, DirectoryKind kind);
  ~AtomicDirectory();  // without commit(): removes what was built, the target is as before
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;

  const fs::path& path() const { return building_; }  // write the files here
  void commit();                                      // replaced directories and files hand their modes on

  // The same checks alone, for callers that have long work before them.
  static void require_usable(const fs::path& target, bool overwrite, const DirectoryKind& kind);

 private:
  void replace();
  void keep_modes() const;
  void remove_replaced(const fs::path& old) const;

  fs::path target_, building_;
  DirectoryKind kind_;
  bool overwrite_;
  int fd_ = -1;  // of the directory that is built: its lock
};

}  // namespace oscar
