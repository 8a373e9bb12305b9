#include "bundle/atomic_directory.h"

#include <fcntl.h>
#include <stdio.h>  // renameat2 (GNU)
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/log.h"
#include "base/output_file.h"
#include "base/temporary.h"

namespace oscar {
namespace {

constexpr int kNames = 16;  // names to try, if others remove temporaries at the same moment

// "out/" and "out" are the same directory; a link to a directory is followed.
fs::path normalize(const fs::path& target) {
  std::error_code ec;
  fs::path path = fs::weakly_canonical(target, ec);
  if (ec) path = target.lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  if (target.empty() || path.empty() || path == path.root_path()) {
    throw UsageError("'" + target.string() + "' cannot be used as an output directory");
  }
  return path;
}

[[noreturn]] void throw_rename_error(const fs::path& target) {
  const int code = errno;
  if (code == ENOTEMPTY || code == EEXIST) {
    throw UsageError(target.string() + ": already exists; choose another output or pass --overwrite");
  }
  throw EnvironmentError(target.string() + ": the directory cannot be put in place (" + std::strerror(code) + ")");
}

// A new name beside the target, which no run removes.
fs::path name_aside(const fs::path& target) {
  std::string name = temporary_path(target).string();
  return name.replace(name.rfind(".tmp."), 5, ".old.");
}

// Something in the directory that is neither one of the files `own` nor a folder above one; empty: nothing.
std::string find_foreign(const fs::path& directory, const std::set<std::string>& own) {
  std::error_code ec;
  for (fs::recursive_directory_iterator it(directory, ec), end; !ec && it != end; it.increment(ec)) {
    const std::string name = it->path().lexically_relative(directory).generic_string();
    const fs::file_type type = it->symlink_status(ec).type();
    if (type == fs::file_type::regular && own.contains(name)) continue;
    const auto below = own.lower_bound(name + "/");
    if (type == fs::file_type::directory && below != own.end() && below->starts_with(name + "/")) continue;
    return name;
  }
  if (ec) return ec.message();
  return {};
}

}  // namespace

std::set<std::string> names_inside(const std::set<std::string>& names) {
  std::set<std::string> inside;
  for (const std::string& name : names) {
    const fs::path path(name);
    bool plain = !name.empty() && path.is_relative() && path.has_filename() && name == path.lexically_normal().string();
    for (const fs::path& part : path) plain = plain && part != ".." && part != ".";
    if (plain) inside.insert(name);
  }
  return inside;
}

void AtomicDirectory::require_usable(const fs::path& target, bool overwrite, const DirectoryKind& kind) {
  const fs::path path = normalize(target);
  std::error_code ec;
  if (!fs::exists(fs::symlink_status(path, ec))) return;
  if (!fs::is_directory(path, ec)) {
    throw UsageError(path.string() + ": is a file, expected a directory or a new name; choose another output");
  }
  require_absent(path, overwrite);
  if (fs::is_empty(path, ec)) return;
  if (!fs::is_regular_file(fs::symlink_status(path / kind.marker, ec))) {
    throw UsageError(path.string() + ": exists and holds no " + kind.marker +
                     ", so --overwrite will not replace it; choose another output");
  }
  std::set<std::string> own = names_inside(kind.own_files(path));
  own.insert(kind.marker);
  const std::string foreign = find_foreign(path, own);
  if (!foreign.empty()) {
    throw UsageError(path.string() + ": holds '" + foreign +
                     "', which is none of the files that were written there, so --overwrite will not replace the " +
                     "directory; move it away or choose another output");
  }
}

AtomicDirectory::AtomicDirectory(const fs::path& target, bool overwrite, DirectoryKind kind)
    : target_(normalize(target)), kind_(std::move(kind)), overwrite_(overwrite) {
  require_usable(target, overwrite, kind_);
  if (target_.has_parent_path()) make_directory(target_.parent_path());
  remove_stale_temporaries(target_);
  std::error_code ec;
  const mode_t mode = fs::exists(target_, ec) ? 0700 : 0777;
  for (int i = 0; i < kNames && fd_ < 0; ++i) {
    building_ = temporary_path(target_);
    if (::mkdir(building_.c_str(), mode) != 0) {
      const int code = errno;
      if (code == EEXIST) continue;
      throw EnvironmentError(target_.string() + ": cannot be written (" + std::strerror(code) +
                             "); choose a writable place for the output");
    }
    fd_ = ::open(building_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd_ >= 0 && !lock_temporary(fd_)) ::close(std::exchange(fd_, -1));
  }
  if (fd_ < 0) throw EnvironmentError(target_.string() + ": cannot be written (no temporary name beside it is free)");
}

AtomicDirectory::~AtomicDirectory() {
  std::error_code ec;
  if (!building_.empty()) fs::remove_all(building_, ec);
  if (fd_ >= 0) ::close(fd_);
}

void AtomicDirectory::keep_modes() const {
  struct stat st {};
  std::error_code ec;
  for (fs::recursive_directory_iterator it(building_, ec), end; !ec && it != end; it.increment(ec)) {
    const fs::path before = target_ / it->path().lexically_relative(building_);
    if (::lstat(before.c_str(), &st) == 0 && !S_ISLNK(st.st_mode)) ::chmod(it->path().c_str(), st.st_mode & 0777);
  }
  if (::stat(target_.c_str(), &st) == 0) ::fchmod(fd_, st.st_mode & 0777);
}

// Removes exactly what require_usable() recognized as ours. Anything newer stays, under a name that no run takes for a
// temporary.
void AtomicDirectory::remove_replaced(const fs::path& old) const {
  std::error_code ec;
  std::set<std::string> own = names_inside(kind_.own_files(old));
  own.insert(kind_.marker);
  std::vector<fs::path> folders;
  for (fs::recursive_directory_iterator it(old, ec), end; !ec && it != end; it.increment(ec)) {
    if (it->symlink_status(ec).type() == fs::file_type::directory) folders.push_back(it->path());
  }
  for (const std::string& name : own) fs::remove(old / name, ec);
  for (auto folder = folders.rbegin(); folder != folders.rend(); ++folder) fs::remove(*folder, ec);
  if (fs::remove(old, ec) || !fs::exists(old, ec)) return;
  const fs::path kept = name_aside(target_);
  if (old != kept) fs::rename(old, kept, ec);
  log_warning((ec ? old : kept).string() + ": holds files that came into the replaced directory meanwhile");
}

// Replaces the existing directory: swaps both in one step if the file system can, else moves the old one aside first.
void AtomicDirectory::replace() {
  require_usable(target_, overwrite_, kind_);  // checks again that nothing foreign has come in meanwhile
  keep_modes();
  sync_directory(building_);
  if (::renameat2(AT_FDCWD, building_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE) == 0) {
    return remove_replaced(std::exchange(building_, fs::path()));
  }
  const fs::path aside = name_aside(target_);
  if (::rename(target_.c_str(), aside.c_str()) != 0) throw_rename_error(target_);
  if (::rename(building_.c_str(), target_.c_str()) != 0) {
    const int code = errno;
    const bool back = ::rename(aside.c_str(), target_.c_str()) == 0;
    errno = code;
    if (back) throw_rename_error(target_);
    throw EnvironmentError(target_.string() + ": the directory cannot be put in place (" + std::strerror(code) +
                           "); the one that was there is " + aside.string());
  }
  building_.clear();
  remove_replaced(aside);
}

void AtomicDirectory::commit() {
  std::error_code ec;
  if (fs::exists(fs::symlink_status(target_, ec))) {
    replace();
  } else {
    sync_directory(building_);
    if (::rename(building_.c_str(), target_.c_str()) == 0) {
      building_.clear();
    } else if (overwrite_ && (errno == ENOTEMPTY || errno == EEXIST)) {
      replace();  // another run has put its directory there meanwhile
    } else {
      throw_rename_error(target_);
    }
  }
  sync_directory(target_.parent_path());
}

}  // namespace oscar
