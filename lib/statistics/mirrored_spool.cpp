#include "statistics/mirrored_spool.h"

#include <ATen/ATen.h>

namespace oscar {
MirroredSpool::MirroredSpool(const fs::path& path, std::int64_t rows, std::vector<std::int64_t> row,
                             at::ScalarType dtype, bool keep, at::Device device, std::int64_t saved_rows)
    : spool_(path, rows, row, dtype, keep), device_(device) {
  std::uint64_t bytes = c10::elementSize(dtype) * static_cast<std::uint64_t>(rows);
  for (const std::int64_t n : row) bytes *= static_cast<std::uint64_t>(n);
  if (!device.is_cuda() || bytes > kMostMirrorBytes) return;
  std::vector<std::int64_t> shape = {rows};
  shape.insert(shape.end(), row.begin(), row.end());
  mirror_ = at::empty(shape, at::TensorOptions(dtype).device(device));
  if (saved_rows > 0) mirror_.narrow(0, 0, saved_rows).copy_(spool_.read(0, saved_rows));
  written_ = saved_ = saved_rows;
}

void MirroredSpool::write(std::int64_t first, const at::Tensor& rows) {
  if (!mirror_.defined()) return spool_.write(first, rows);
  if (first == 0) saved_ = 0;  // a new layer
  mirror_.narrow(0, first, rows.size(0)).copy_(rows);
  written_ = first + rows.size(0);
}

at::Tensor MirroredSpool::read(std::int64_t first, std::int64_t count) const {
  return mirror_.defined() ? mirror_.narrow(0, first, count) : spool_.read(first, count).to(device_);
}

void MirroredSpool::sync() {
  if (mirror_.defined() && written_ > saved_) {
    spool_.write(saved_, mirror_.narrow(0, saved_, written_ - saved_));
    saved_ = written_;
  }
  spool_.sync();
}

}  // namespace oscar
