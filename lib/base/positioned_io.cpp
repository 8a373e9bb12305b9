#include "base/open_regular.h"

#include <unistd.h>

#include <cerrno>

namespace oscar {
namespace {

// call(data, bytes, offset): pwrite or pread.
template <class Byte, class Call>
bool whole(Byte* data, std::size_t bytes, std::uint64_t offset, Call&& call) {
  while (bytes > 0) {
    const ssize_t n = call(data, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    data += n, bytes -= static_cast<std::size_t>(n), offset += static_cast<std::uint64_t>(n);
  }
  return true;
}

}  // namespace

bool write_at(int fd, const void* data, std::size_t bytes, std::uint64_t offset) {
  return whole(static_cast<const char*>(data), bytes, offset,
               [fd](const char* at, std::size_t n, off_t from) { return ::pwrite(fd, at, n, from); });
}

bool read_at(int fd, void* data, std::size_t bytes, std::uint64_t offset) {
  return whole(static_cast<char*>(data), bytes, offset,
               [fd](char* at, std::size_t n, off_t from) { return ::pread(fd, at, n, from); });
}

}  // namespace oscar
