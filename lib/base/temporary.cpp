#include "base/temporary.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "base/errors.h"
#include "base/formatted.h"
#include "base/hash.h"

namespace oscar {
namespace {

constexpr const char* kMark = ".tmp.";
constexpr std::size_t kDigits = 16;  // of each half

std::string proof(const std::string& stem, const std::string& digits) {
  return sha256_hex("oscar temporary\n" + stem + "\n" + digits).substr(0, kDigits);
}

std::string random_digits() {
  unsigned char bytes[kDigits / 2];
  if (::getrandom(bytes, sizeof bytes, 0) != static_cast<ssize_t>(sizeof bytes)) {
    throw EnvironmentError(std::string("the system gives no random numbers (") + std::strerror(errno) + ")");
  }
  std::string digits;
  for (const unsigned char byte : bytes) digits += formatted("%02x", byte);
  return digits;
}

// Locks a file left by a dead run; then no other process removes or builds it. -1: the run is alive, or the file must
// not be touched.
int lock_stale(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return -1;
  struct stat st {};
  const bool ours = ::fstat(fd, &st) == 0 && st.st_uid == ::geteuid() && (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode));
  if (ours && ::flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  ::close(fd);
  return -1;
}

}  // namespace

fs::path temporary_path(const fs::path& path) {
  const std::string digits = random_digits();
  fs::path temporary = path;
  temporary += kMark + digits + proof(path.filename().string(), digits);
  return temporary;
}

bool is_temporary_of(const std::string& name, const std::string& stem) {
  const std::string prefix = stem + kMark;
  if (!name.starts_with(prefix) || name.size() != prefix.size() + 2 * kDigits) return false;
  const std::string digits = name.substr(prefix.size(), kDigits);
  return name.substr(prefix.size() + kDigits) == proof(stem, digits);
}

bool lock_temporary(int fd) {
  // On a file system without locks, no other process can lock it for removal either.
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return false;
  struct stat st {};
  return ::fstat(fd, &st) == 0 && st.st_nlink > 0;
}

void remove_stale_temporaries(const fs::path& path) {
  const std::string stem = path.filename().string();
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::error_code ec;
  std::vector<fs::path> found;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    if (is_temporary_of(it->path().filename().string(), stem)) found.push_back(it->path());
  }
  for (const fs::path& temporary : found) {
    const int fd = lock_stale(temporary);
    if (fd < 0) continue;
    fs::remove_all(temporary, ec);
    ::close(fd);
  }
}

}  // namespace oscar
