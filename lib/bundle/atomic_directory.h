// A directory that appears complete or not at all: it is built beside its target (base/temporary.h) and renamed.
#pragma once

#include <functional>
#include <set>
#include <string>

#include "base/files.h"

namespace oscar {

// The kind of directory that a command writes, and how it recognizes one.
struct DirectoryKind {
  std::string marker;  // name of a file that every directory of this kind has
  // Relative names of the files that belong to such a directory, according to its own records.
  std::function<std::set<std::string>(const fs::path& directory)> own_files;
};

// Keeps only names that stay inside the directory: relative, without empty, "." or ".." parts.
std::set<std::string> names_inside(const std::set<std::string>& names);

class AtomicDirectory {
 public:
  // UsageError if the target exists and overwrite is false. Also if it is not empty and holds anything but the files of
  // a directory of this kind: other people's files are never replaced or removed.
  AtomicDirectory(const fs::path& target, bool overwrite, DirectoryKind kind);
  ~AtomicDirectory();  // without commit(): removes what was built, and the target stays as before
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;

  const fs::path& path() const { return building_; }  // write the files here
  void commit();                                      // replaced directories and files pass their modes on

  // Only the checks, for callers with long work before the constructor.
  static void require_usable(const fs::path& target, bool overwrite, const DirectoryKind& kind);

 private:
  void replace();
  void keep_modes() const;
  void remove_replaced(const fs::path& old) const;

  fs::path target_, building_;
  DirectoryKind kind_;
  bool overwrite_;
  int fd_ = -1;  // file descriptor of the directory being built: its lock
};

}  // namespace oscar
