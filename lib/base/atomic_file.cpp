#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/open_regular.h"
#include "base/output_file.h"
#include "base/temporary.h"

namespace oscar {
namespace {

constexpr int kNames = 16;                            // attempts, in case others remove temporaries at the same moment
constexpr std::size_t kPiece = std::size_t{1} << 22;  // bytes that a thread writes at once
constexpr unsigned kWriters = 8;                      // maximum threads: more do not make a file system faster

[[noreturn]] void throw_write_error(const fs::path& path) {
  const int code = errno;
  if (code == EFAULT) {  // the source is a map of a file that was truncated
    throw InputError(path.string() + ": not written, because a file it is made from became shorter while it was read");
  }
  std::string hint = code == ENOSPC ? "free some disk space and run again" : "choose a writable place for the output";
  throw EnvironmentError(path.string() + ": cannot be written (" + std::strerror(code) + "); " + hint);
}

// A replaced file keeps its permissions: mode bits 0777 of the existing file, otherwise -1.
int mode_of_replaced(const fs::path& path) {
  struct stat st {};
  return ::lstat(path.c_str(), &st) == 0 ? static_cast<int>(st.st_mode & 0777) : -1;
}

}  // namespace

AtomicFile::AtomicFile(const fs::path& path) : path_(path) {
  require_output_file(path_, true);
  if (path_.has_parent_path()) make_directory(path_.parent_path());
  remove_stale_temporaries(path_);
  const int mode = mode_of_replaced(path_);
  for (int i = 0; i < kNames && fd_ < 0; ++i) {
    temporary_ = oscar::temporary_path(path_);
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode < 0 ? 0644 : 0600);
    if (fd_ < 0 && errno != EEXIST) throw_write_error(path_);
    if (fd_ >= 0 && !lock_temporary(fd_)) ::close(std::exchange(fd_, -1));
  }
  if (fd_ < 0) throw EnvironmentError(path_.string() + ": cannot be written (no temporary name beside it is free)");
  if (mode >= 0 && ::fchmod(fd_, static_cast<mode_t>(mode)) != 0) {
    const int code = errno;
    ::close(std::exchange(fd_, -1));
    ::unlink(temporary_.c_str());
    errno = code;
    throw_write_error(path_);
  }
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::unlink(temporary_.c_str());
  ::close(fd_);
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  const char* p = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(fd_, p, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_write_error(path_);
    p += n;
    bytes -= static_cast<std::size_t>(n);
    written_ += static_cast<std::uint64_t>(n);
  }
}

void AtomicFile::write(std::span<const std::span<const std::byte>> parts) {
  struct Piece {
    std::span<const std::byte> bytes;
    std::uint64_t offset;
  };
  std::vector<Piece> pieces;
  for (const std::span<const std::byte> part : parts) {
    for (std::size_t at = 0; at < part.size(); at += kPiece) {
      pieces.push_back({part.subspan(at, std::min(kPiece, part.size() - at)), written_ + at});
    }
    written_ += part.size();
  }
  std::atomic<std::size_t> next{0};
  std::atomic<int> code{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < pieces.size() && code == 0; i = next++) {
      if (!write_at(fd_, pieces[i].bytes.data(), pieces[i].bytes.size(), pieces[i].offset)) code = errno;
    }
  };
  {
    std::vector<std::jthread> others;
    const std::size_t most = std::min<std::size_t>(std::min(kWriters, std::thread::hardware_concurrency()),
                                                   written_ / (4 * kPiece));  // small writes are not worth a thread
    for (std::size_t i = 1; i < most; ++i) others.emplace_back(work);
    work();
  }
  errno = code;
  if (code != 0 || ::lseek(fd_, static_cast<off_t>(written_), SEEK_SET) < 0) throw_write_error(path_);
}

void AtomicFile::commit(bool durable) {
  if (durable && ::fsync(fd_) != 0) throw_write_error(path_);
  require_output_file(path_, true);  // nothing else may have appeared there meanwhile
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) throw_write_error(path_);
  ::close(std::exchange(fd_, -1));  // the lock ends after the temporary name is gone
  // Makes the rename durable too.
  if (durable) sync_directory(path_.has_parent_path() ? path_.parent_path() : fs::path("."));
}

void write_file_atomic(const fs::path& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit();
}

}  // namespace oscar
