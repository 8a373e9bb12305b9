// A spool whose rows also stay on the GPU while they fit: it writes them to disk only when the state is saved and never
// reads them back. On the CPU, and for rows beyond the limit, it is only the spool.
#pragma once

#include <optional>

#include "collect/spool.h"

namespace oscar {

constexpr std::uint64_t kMostMirrorBytes = std::uint64_t{4} << 30;  // 1 M tokens of 8 KV heads of size 128 in BF16

class MirroredSpool {
 public:
  // Arguments of Spool; device: where rows come from. saved: the valid rows in the file, which are checked; no rows:
  // the file is new.
  MirroredSpool(const fs::path& path, std::int64_t rows, std::vector<std::int64_t> row, at::ScalarType dtype,
                at::Device device, const SpoolSum& saved);

  void write(std::int64_t first, const at::Tensor& rows);  // in order: each `first` is the end of the last write, or 0
  at::Tensor read(std::int64_t first, std::int64_t count) const;      // on the device
  SpoolSum sum() const { return file_ ? file_->sum() : SpoolSum{}; }  // of the rows in the file
  void sync();  // after this everything written is on disk; EnvironmentError: disk full

 private:
  Spool& file();

  fs::path path_;
  std::int64_t rows_;
  std::vector<std::int64_t> row_;
  at::ScalarType dtype_;
  std::optional<Spool> file_;  // with a mirror, only once the state is saved
  at::Device device_;
  at::Tensor mirror_;  // [rows, row...] on the device; undefined: none
  std::int64_t written_ = 0, saved_ = 0;
};

}  // namespace oscar
