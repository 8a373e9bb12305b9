#include "base/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/errors.h"
#include "base/formatted.h"
#include "base/open_regular.h"
#include "base/output_file.h"

namespace oscar {
namespace {

std::string reason() { return std::strerror(errno); }

constexpr const char* kIsLink = ": is a link, which is not followed; remove it";

[[noreturn]] void throw_lock_error(const fs::path& path) {
  const int code = errno;
  if (code == ELOOP) throw EnvironmentError(path.string() + kIsLink);
  throw EnvironmentError(path.string() + ": cannot be written (" + std::strerror(code) +
                         "); choose a writable place for the output");
}

// The mode of what is at this path, links followed; 0 for nothing.
mode_t mode_of(const fs::path& path) {
  struct stat st {};
  if (::stat(path.c_str(), &st) == 0) return st.st_mode;
  if (errno == EACCES || errno == EPERM) {
    throw InputError(path.string() + ": cannot be seen (" + reason() +
                     "); change the permissions of its folder, or run as a user who may read it");
  }
  return 0;
}

}  // namespace

bool path_exists(const fs::path& path) { return mode_of(path) != 0; }
bool folder_exists(const fs::path& path) { return S_ISDIR(mode_of(path)); }

int open_regular(const fs::path& path, std::uint64_t* size, Links links) {
  // O_NONBLOCK, because open() would wait for the writer of a pipe. It has no effect on regular files.
  const int fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | (links == Links::kRefuse ? O_NOFOLLOW : 0));
  if (fd < 0 && errno == ELOOP && links == Links::kRefuse) throw InputError(path.string() + kIsLink);
  if (fd < 0) throw InputError(path.string() + ": cannot be opened (" + reason() + ")");
  struct stat st {};
  if (::fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    ::close(fd);
    throw InputError(path.string() + ": is not a regular file");
  }
  *size = static_cast<std::uint64_t>(st.st_size);
  return fd;
}

std::string read_file(const fs::path& path, std::uint64_t max_bytes, Links links) {
  std::uint64_t size = 0;
  const int fd = open_regular(path, &size, links);
  if (size > max_bytes) {
    ::close(fd);
    throw InputError(path.string() + ": is " + format_bytes(size) + ", larger than the " + format_bytes(max_bytes) +
                     " this kind of file may have");
  }
  std::string content(size, '\0');
  std::size_t done = 0;
  while (done < content.size()) {
    const ssize_t n = ::read(fd, content.data() + done, content.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const std::string why = reason();
      ::close(fd);
      throw InputError(path.string() + ": cannot be read (" + why + ")");
    }
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  ::close(fd);
  content.resize(done);
  return content;
}

void make_directory(const fs::path& path) {
  std::error_code ec;
  fs::create_directories(path, ec);
  if (ec || !fs::is_directory(path)) {
    throw EnvironmentError(path.string() + ": the directory cannot be created (" +
                           (ec ? ec.message() : std::string("a file is in the way")) + ")");
  }
}

void require_absent(const fs::path& path, bool overwrite) {
  std::error_code ec;
  if (!overwrite && fs::exists(fs::symlink_status(path, ec))) {
    throw UsageError(path.string() + ": already exists; choose another output or pass --overwrite");
  }
}

void require_output_file(const fs::path& path, bool overwrite) {
  struct stat st {};
  if (path.empty() || !path.has_filename()) throw UsageError("'" + path.string() + "' is no name for a file");
  if (::lstat(path.c_str(), &st) != 0) return;
  if (S_ISREG(st.st_mode)) return require_absent(path, overwrite);
  const char* kind = S_ISDIR(st.st_mode)    ? "a directory"
                     : S_ISLNK(st.st_mode)  ? "a link"
                     : S_ISFIFO(st.st_mode) ? "a pipe"
                     : S_ISSOCK(st.st_mode) ? "a socket"
                                            : "a device";
  throw UsageError(path.string() + ": is " + kind + ", and only regular files are replaced; name another file");
}

void sync_directory(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

FileLock::FileLock(const fs::path& path) {
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
  if (fd_ < 0) throw_lock_error(path);
  struct stat st {};
  if (::fstat(fd_, &st) != 0 || !S_ISREG(st.st_mode)) {
    ::close(std::exchange(fd_, -1));
    throw EnvironmentError(path.string() + ": is not a regular file, so it cannot be the lock; remove it");
  }
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    ::close(std::exchange(fd_, -1));
    throw EnvironmentError(path.string() + ": another run uses this directory; wait for it or choose another one");
  }
}

FileLock::~FileLock() {
  if (fd_ >= 0) ::close(fd_);
}

std::string format_bytes(std::uint64_t bytes) {
  static const char* const kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024.0 && unit < 4) {
    value /= 1024.0;
    ++unit;
  }
  return formatted(unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
}

}  // namespace oscar
