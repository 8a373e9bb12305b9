#include "bundle/atomic_directory.h"

#include <fcntl.h>
#include <stdio.h>  // renameat2 (GNU)
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/errors.h"

namespace oscar {
namespace {

// "out/" and "out" are the same directory; a link to a directory is followed.
fs::path normalise(const fs::path& target) {
  std::error_code ec;
  fs::path path = fs::weakly_canonical(target, ec);
  if (ec) path = target.lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  if (target.empty() || path.empty() || path == path.root_path()) {
    throw UsageError("'" + target.string() + "' cannot be used as an output directory");
  }
  return path;
}

void sync_directory(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

[[noreturn]] void throw_rename_error(const fs::path& target) {
  const int code = errno;
  if (code == ENOTEMPTY || code == EEXIST) {
    throw UsageError(target.string() + ": already exists; choose another output or pass --overwrite");
  }
  throw EnvironmentError(target.string() + ": the directory cannot be put in place (" + std::strerror(code) + ")");
}

}  // namespace

void AtomicDirectory::require_usable(const fs::path& target, bool overwrite, const std::string& marker) {
  const fs::path path = normalise(target);
  std::error_code ec;
  if (!fs::exists(fs::symlink_status(path, ec))) return;
  require_absent(path, overwrite);
  if (!fs::is_directory(path, ec)) {
    throw UsageError(path.string() + ": is a file, expected a directory or a new name; choose another output");
  }
  if (!fs::is_empty(path, ec) && !fs::exists(path / marker, ec)) {
    throw UsageError(path.string() + ": exists and holds no " + marker +
                     ", so --overwrite will not replace it; choose another output");
  }
}

AtomicDirectory::AtomicDirectory(const fs::path& target, bool overwrite, const std::string& marker)
    : target_(normalise(target)) {
  require_usable(target, overwrite, marker);
  if (target_.has_parent_path()) make_directory(target_.parent_path());
  fs::path building = target_;
  building += ".tmp." + std::to_string(::getpid());
  std::error_code ec;
  fs::remove_all(building, ec);  // of a dead process that had this id
  if (!fs::create_directory(building, ec) || ec) {
    throw EnvironmentError(target_.string() + ": cannot be written (" +
                           (ec ? ec.message() : std::string("its temporary name is taken")) +
                           "); choose a writable place for the output");
  }
  building_ = building;
}

AtomicDirectory::~AtomicDirectory() {
  if (building_.empty()) return;
  std::error_code ec;
  fs::remove_all(building_, ec);
}

void AtomicDirectory::commit() {
  sync_directory(building_);
  std::error_code ec;
  if (fs::exists(fs::symlink_status(target_, ec))) {
    // Swap old and new in one step where the file system can; the destructor then removes the old one.
    if (::renameat2(AT_FDCWD, building_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE) == 0) {
      sync_directory(target_.parent_path());
      return;
    }
    fs::path old = target_;
    old += ".old." + std::to_string(::getpid());
    if (::rename(target_.c_str(), old.c_str()) != 0) throw_rename_error(target_);
    if (::rename(building_.c_str(), target_.c_str()) != 0) {
      const int code = errno;
      if (::rename(old.c_str(), target_.c_str()) != 0) errno = code;
      errno = code;
      throw_rename_error(target_);
    }
    building_ = old;
  } else {
    if (::rename(building_.c_str(), target_.c_str()) != 0) throw_rename_error(target_);
    building_.clear();
  }
  sync_directory(target_.parent_path());
}

}  // namespace oscar
