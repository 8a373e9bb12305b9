#include "collect/mirrored_spool.h"

#include <ATen/ATen.h>

#include <utility>

namespace oscar {

MirroredSpool::MirroredSpool(const fs::path& path, std::int64_t rows, std::vector<std::int64_t> row,
                             at::ScalarType dtype, at::Device device, const SpoolSum& saved)
    : path_(path), rows_(rows), row_(std::move(row)), dtype_(dtype), device_(device) {
  const bool keep = saved.rows > 0;
  std::uint64_t bytes = c10::elementSize(dtype) * static_cast<std::uint64_t>(rows);
  for (const std::int64_t n : row_) bytes *= static_cast<std::uint64_t>(n);
  const bool mirrored = device.is_cuda() && bytes <= kMostMirrorBytes;
  if (keep || !mirrored) file_.emplace(path, rows, row_, dtype, keep);
  if (keep) file_->require(saved, saved.rows);
  if (!mirrored) return;
  std::vector<std::int64_t> shape = {rows};
  shape.insert(shape.end(), row_.begin(), row_.end());
  mirror_ = at::empty(shape, at::TensorOptions(dtype).device(device));
  if (keep) mirror_.narrow(0, 0, saved.rows).copy_(file_->read(0, saved.rows));
  written_ = saved_ = saved.rows;
}

Spool& MirroredSpool::file() {
  if (!file_) file_.emplace(path_, rows_, row_, dtype_, /*keep=*/false);
  return *file_;
}

void MirroredSpool::write(std::int64_t first, const at::Tensor& rows) {
  if (!mirror_.defined()) return file_->write(first, rows);
  if (first == 0) saved_ = 0;  // a new layer
  mirror_.narrow(0, first, rows.size(0)).copy_(rows);
  written_ = first + rows.size(0);
}

at::Tensor MirroredSpool::read(std::int64_t first, std::int64_t count) const {
  return mirror_.defined() ? mirror_.narrow(0, first, count) : file_->read(first, count).to(device_);
}

void MirroredSpool::sync() {
  if (mirror_.defined() && written_ > saved_) {
    file().write(saved_, mirror_.narrow(0, saved_, written_ - saved_));
    saved_ = written_;
  }
  file().sync();
}

}  // namespace oscar
