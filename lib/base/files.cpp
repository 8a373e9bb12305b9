#include "base/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/errors.h"

namespace oscar {
namespace {

std::string reason() { return std::strerror(errno); }

// Opens for reading and returns the size; refuses directories and other non-files.
int open_regular(const fs::path& path, std::uint64_t* size) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw InputError(path.string() + ": cannot be opened (" + reason() + ")");
  struct stat st {};
  if (::fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    ::close(fd);
    throw InputError(path.string() + ": is not a regular file");
  }
  *size = static_cast<std::uint64_t>(st.st_size);
  return fd;
}

[[noreturn]] void throw_write_error(const fs::path& path) {
  const int code = errno;
  std::string hint = code == ENOSPC ? "free some disk space and run again" : "choose a writable place for the output";
  throw EnvironmentError(path.string() + ": cannot be written (" + std::strerror(code) + "); " + hint);
}

}  // namespace

std::string read_file(const fs::path& path, std::uint64_t max_bytes) {
  std::uint64_t size = 0;
  const int fd = open_regular(path, &size);
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

MappedFile::MappedFile(const fs::path& path) {
  std::uint64_t size = 0;
  const int fd = open_regular(path, &size);
  if (size > 0) {
    void* p = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
      const std::string why = reason();
      ::close(fd);
      throw EnvironmentError(path.string() + ": cannot be memory-mapped (" + why + ")");
    }
    data_ = static_cast<const std::byte*>(p);
    size_ = size;
  }
  ::close(fd);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

AtomicFile::AtomicFile(const fs::path& path) : path_(path) {
  temporary_ = path_;
  temporary_ += ".tmp." + std::to_string(::getpid());
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) throw_write_error(path_);
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) {
    ::close(fd_);
    ::unlink(temporary_.c_str());
  }
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  const char* p = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(fd_, p, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_write_error(path_);
    p += n;
    bytes -= static_cast<std::size_t>(n);
  }
}

void AtomicFile::commit() {
  if (::fsync(fd_) != 0) throw_write_error(path_);
  if (::close(std::exchange(fd_, -1)) != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int code = errno;
    ::unlink(temporary_.c_str());
    errno = code;
    throw_write_error(path_);
  }
  // The rename itself must survive a power cut too.
  const fs::path folder = path_.has_parent_path() ? path_.parent_path() : fs::path(".");
  const int dir = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dir >= 0) {
    ::fsync(dir);
    ::close(dir);
  }
}

void write_file_atomic(const fs::path& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit();
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

FileLock::FileLock(const fs::path& path) {
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) throw_write_error(path);
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
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text;
}

}  // namespace oscar
