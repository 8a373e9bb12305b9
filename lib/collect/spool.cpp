#include "collect/spool.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/errors.h"
#include "base/hash.h"
#include "base/open_regular.h"
#include "base/run_directory.h"

namespace oscar {
namespace {

constexpr std::int64_t kReadBytes = 16 << 20;  // at once, when a file is checked

[[noreturn]] void fail(const fs::path& path, const char* what) {
  const int code = errno;
  throw EnvironmentError(path.string() + ": " + what + " (" + std::strerror(code) + ")" +
                         (code == ENOSPC ? "; free some disk space or choose another --work-dir" : ""));
}

}  // namespace

Spool::Spool(const fs::path& path, std::int64_t rows, std::vector<std::int64_t> row, at::ScalarType dtype, bool keep)
    : path_(path), rows_(rows), shape_(std::move(row)), dtype_(dtype) {
  row_bytes_ = c10::elementSize(dtype);
  for (const std::int64_t n : shape_) row_bytes_ *= static_cast<std::uint64_t>(n);
  const std::uint64_t size = row_bytes_ * static_cast<std::uint64_t>(rows);
  // A new file must be new: never the target of a link, and never the content of a file that has another name, too.
  if (!keep) ::unlink(path.c_str());
  fd_ = ::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | (keep ? 0 : O_CREAT | O_EXCL), 0644);
  if (fd_ < 0) {
    if (keep && errno == ENOENT)
      throw InputError(path.string() + ": is missing, so the run cannot be resumed; start it anew");
    fail(path, "cannot be opened");
  }
  if (keep) {
    struct stat st {};
    if (::fstat(fd_, &st) != 0 || !S_ISREG(st.st_mode) || st.st_nlink != 1 ||
        static_cast<std::uint64_t>(st.st_size) != size) {
      ::close(std::exchange(fd_, -1));
      throw InputError(path.string() + ": is not the file of " + format_bytes(size) +
                       " that the run needs, so it cannot be resumed; start it anew");
    }
    return;
  }
  // Reserving the space finds a full disk now instead of after hours. On file systems without fallocate the file just
  // grows.
  if (size > 0 && ::fallocate(fd_, 0, 0, static_cast<off_t>(size)) != 0) {
    if ((errno != EOPNOTSUPP && errno != ENOSYS) || ::ftruncate(fd_, static_cast<off_t>(size)) != 0) {
      const int code = errno;
      ::close(std::exchange(fd_, -1));
      ::unlink(path.c_str());
      errno = code;
      fail(path, ("needs " + format_bytes(size) + " that cannot be reserved").c_str());
    }
  }
}

Spool::~Spool() {
  if (fd_ >= 0) ::close(fd_);
}

Spool::Spool(Spool&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      rows_(other.rows_),
      row_bytes_(other.row_bytes_),
      shape_(std::move(other.shape_)),
      dtype_(other.dtype_),
      sum_(other.sum_) {}

// Rows begin at whole words, so a checksum does not depend on how rows were written.
std::uint64_t Spool::checksum(std::int64_t first, const at::Tensor& rows) const {
  const auto* data = static_cast<const std::byte*>(rows.const_data_ptr());
  const std::uint64_t words = (row_bytes_ + 7) / 8;
  if (row_bytes_ % 8 == 0) return words_checksum(data, rows.nbytes(), static_cast<std::uint64_t>(first) * words);
  std::uint64_t sum = 0;
  for (std::int64_t r = 0; r < rows.size(0); ++r) {
    sum += words_checksum(data + static_cast<std::uint64_t>(r) * row_bytes_, row_bytes_,
                          static_cast<std::uint64_t>(first + r) * words);
  }
  return sum;
}

std::uint64_t Spool::checksum_on_disk(std::int64_t rows) const {
  const std::int64_t each = std::max<std::int64_t>(kReadBytes / static_cast<std::int64_t>(row_bytes_), 1);
  std::uint64_t sum = 0;
  for (std::int64_t first = 0; first < rows; first += each) {
    sum += checksum(first, read(first, std::min(each, rows - first)));
  }
  return sum;
}

void Spool::require(const SpoolSum& saved, std::int64_t rows) {
  if (saved.rows != rows || rows > rows_) damaged_run(path_.string(), "has other rows than the run's state names");
  require_checksum(checksum_hex(checksum_on_disk(rows)), checksum_hex(saved.sum), path_.string());
  sum_ = saved;
}

void Spool::write(std::int64_t first, const at::Tensor& rows) {
  const at::Tensor flat = rows.to(at::kCPU).contiguous();
  TORCH_CHECK(flat.scalar_type() == dtype_ && flat.sizes().slice(1) == at::IntArrayRef(shape_) && first >= 0 &&
                  first + flat.size(0) <= rows_,
              "spool ", path_.string(), ": rows do not fit");
  if (!write_at(fd_, flat.const_data_ptr(), flat.nbytes(), static_cast<std::uint64_t>(first) * row_bytes_)) {
    fail(path_, "cannot be written");
  }
  // Rows come in order. Others, which no caller writes, cost a second reading.
  if (first != sum_.rows) sum_.sum = checksum_on_disk(first);
  sum_.sum += checksum(first, flat);
  sum_.rows = first + flat.size(0);
}

at::Tensor Spool::read(std::int64_t first, std::int64_t count) const {
  TORCH_CHECK(first >= 0 && count >= 0 && first + count <= rows_, "spool ", path_.string(), ": no such rows");
  std::vector<std::int64_t> shape = {count};
  shape.insert(shape.end(), shape_.begin(), shape_.end());
  at::Tensor rows = at::empty(shape, at::TensorOptions(dtype_));
  if (!read_at(fd_, rows.mutable_data_ptr(), rows.nbytes(), static_cast<std::uint64_t>(first) * row_bytes_)) {
    fail(path_, "cannot be read");
  }
  return rows;
}

void Spool::rename(const fs::path& path) {
  if (::rename(path_.c_str(), path.c_str()) != 0) fail(path, "cannot be written");
  path_ = path;
}

void Spool::sync() {
  if (::fdatasync(fd_) != 0) fail(path_, "cannot be written");
}

MirroredSpool::MirroredSpool(const fs::path& path, std::int64_t rows, std::vector<std::int64_t> row,
                             at::ScalarType dtype, at::Device device)
    : device_(device) {
  std::vector<std::int64_t> shape = {rows};
  shape.insert(shape.end(), row.begin(), row.end());
  const auto bytes = c10::elementSize(dtype) * static_cast<std::uint64_t>(c10::multiply_integers(shape));
  if (device.is_cuda() && bytes <= kMostMirrorBytes) {
    mirror_ = at::empty(shape, at::TensorOptions(dtype).device(device));
  } else {
    file_.emplace(path, rows, std::move(row), dtype, /*keep=*/false);
  }
}

void MirroredSpool::write(std::int64_t first, const at::Tensor& rows) {
  if (!mirror_.defined()) return file_->write(first, rows);
  mirror_.narrow(0, first, rows.size(0)).copy_(rows);
}

at::Tensor MirroredSpool::read(std::int64_t first, std::int64_t count) const {
  return mirror_.defined() ? mirror_.narrow(0, first, count) : file_->read(first, count).to(device_);
}

}  // namespace oscar
