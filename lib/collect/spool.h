// Rows of one tensor on disk: hidden states of all tokens, or K and V of one layer. It uses plain positioned reads and
// writes, not a memory map. So a full disk is an error with a sentence instead of SIGBUS, and the rows never count as
// process memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "base/files.h"

namespace oscar {

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
  void rename(const fs::path& path);                              // replaces any file of that name
  std::int64_t rows() const { return rows_; }

 private:
  fs::path path_;
  int fd_ = -1;
  std::int64_t rows_ = 0;
  std::uint64_t row_bytes_ = 0;
  std::vector<std::int64_t> shape_;  // of one row
  at::ScalarType dtype_;
};

}  // namespace oscar
