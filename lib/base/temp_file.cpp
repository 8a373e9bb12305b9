#include "base/temp_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/errors.h"
#include "base/positioned_io.h"

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
  if (!write_at(fd_, data, bytes, size_)) fail("written");
  size_ += bytes;
}

void TempFile::read(std::uint64_t offset, void* data, std::size_t bytes) const {
  if (!read_at(fd_, data, bytes, offset)) fail("read");
}

}  // namespace oscar
