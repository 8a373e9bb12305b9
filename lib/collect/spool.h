// Rows of one tensor on disk: hidden states of all tokens, or K and V of one layer. It uses plain positioned reads and
// writes, not a memory map. So a full disk is an error with a sentence instead of SIGBUS, and the rows never count as
// process memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "base/files.h"

namespace oscar {

// The checksum of the first rows of a file, as they were written.
struct SpoolSum {
  std::int64_t rows = 0;
  std::uint64_t sum = 0;
};

class Spool {
 public:
  // A file of `rows` rows, each of shape `row` and type `dtype`. `keep`: the file must exist with exactly that size
  // (InputError otherwise). Without `keep` it is created or replaced and its space reserved (EnvironmentError: disk
  // full).
  Spool(const fs::path& path, std::int64_t rows, std::vector<std::int64_t> row, at::ScalarType dtype, bool keep);
  ~Spool();
  Spool(Spool&& other) noexcept;
  Spool& operator=(Spool&&) = delete;

  void write(std::int64_t first, const at::Tensor& rows);         // [n, row...] of the spool's dtype, any device
  at::Tensor read(std::int64_t first, std::int64_t count) const;  // [count, row...] on the CPU
  void sync();                                                    // after this the rows survive a power cut
  SpoolSum sum() const { return sum_; }                           // of the rows up to the last one written
  // Reads the rows that a saved state needs. InputError unless they are those that were written; `rows`: their number.
  void require(const SpoolSum& saved, std::int64_t rows);
  void rename(const fs::path& path);  // replaces any file of that name
  std::int64_t rows() const { return rows_; }

 private:
  std::uint64_t checksum(std::int64_t first, const at::Tensor& rows) const;
  std::uint64_t checksum_on_disk(std::int64_t rows) const;

  fs::path path_;
  int fd_ = -1;
  std::int64_t rows_ = 0;
  std::uint64_t row_bytes_ = 0;
  std::vector<std::int64_t> shape_;  // of one row
  at::ScalarType dtype_;
  SpoolSum sum_;
};

// Rows of a layer that stay on the GPU while they fit. On the CPU, and for rows beyond the limit, they are in a spool.

constexpr std::uint64_t kMostMirrorBytes = std::uint64_t{4} << 30;  // 1 M tokens of 8 KV heads of size 128 in BF16

class MirroredSpool {
 public:
  // Arguments of Spool; device: where rows come from.
  MirroredSpool(const fs::path& path, std::int64_t rows, std::vector<std::int64_t> row, at::ScalarType dtype,
                at::Device device);

  void write(std::int64_t first, const at::Tensor& rows);
  at::Tensor read(std::int64_t first, std::int64_t count) const;  // on the device

 private:
  std::optional<Spool> file_;
  at::Device device_;
  at::Tensor mirror_;  // [rows, row...] on the device; undefined: none
};

}  // namespace oscar
