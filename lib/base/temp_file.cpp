#include "base/temp_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/errors.h"

namespace oscar {
namespace {

std::string folder() {
  std::error_code ignored;
  const std::string path = std::filesystem::temp_directory_path(ignored).string();
  return path.empty() ? "/tmp" : path;
}

[[noreturn]] void fail(const char* what) {
  const int code = errno;
  throw EnvironmentError("a temporary file in " + folder() + " cannot be " + what + " (" + std::strerror(code) +
                         "); set TMPDIR to a folder with free space");
}

}  // namespace

TempFile::TempFile() {
  std::string name = folder() + "/oscar-XXXXXX";
  fd_ = ::mkostemp(name.data(), O_CLOEXEC);
  if (fd_ < 0) fail("made");
  ::unlink(name.c_str());
}

TempFile::~TempFile() {
  if (fd_ >= 0) ::close(fd_);
}

void TempFile::append(const void* data, std::size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::pwrite(fd_, at, bytes, static_cast<off_t>(size_));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("written");
    at += n, bytes -= static_cast<std::size_t>(n), size_ += static_cast<std::uint64_t>(n);
  }
}

void TempFile::read(std::uint64_t offset, void* data, std::size_t bytes) const {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::pread(fd_, at, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("read");
    at += n, bytes -= static_cast<std::size_t>(n), offset += static_cast<std::uint64_t>(n);
  }
}

}  // namespace oscar
