#include "statistics/attention_outputs.h"

#include <ATen/ATen.h>

#include <string>

namespace oscar {
namespace {

fs::path finished_file(const WorkDirectory& work, std::int64_t layer) {
  return work.file("attention-" + std::to_string(layer) + ".bin");
}
fs::path unfinished_file(const WorkDirectory& work) { return work.file("attention.bin"); }

}  // namespace

void AttentionOutputs::begin_layer(std::int64_t layer, std::int64_t done) {
  file_.reset();
  layer_ = layer, done_ = done;
  kept_ = done == 0 || fs::exists(unfinished_file(work_));
  fs::remove(finished_file(work_, layer));  // of a run before, whose outputs may be others
}

void AttentionOutputs::write(std::int64_t first, const at::Tensor& outputs) {
  if (outputs.sizes().slice(1) != at::IntArrayRef(row_)) kept_ = false;
  if (!kept_) return;
  if (file_ == nullptr) {
    file_ = std::make_unique<Spool>(unfinished_file(work_), rows_, row_, outputs.scalar_type(), /*keep=*/done_ > 0);
  }
  file_->write(first, outputs);
}

void AttentionOutputs::sync() {
  if (file_ != nullptr) file_->sync();
}

void AttentionOutputs::finish_layer() {
  if (file_ == nullptr) return;
  file_->sync();
  file_->rename(finished_file(work_, layer_));
  file_.reset();
}

std::optional<Spool> AttentionOutputs::open(const WorkDirectory& work, std::int64_t layer, std::int64_t rows,
                                            at::IntArrayRef row, at::ScalarType dtype) {
  const fs::path path = finished_file(work, layer);
  if (!fs::exists(path)) return std::nullopt;
  return Spool(path, rows, row.vec(), dtype, /*keep=*/true);
}

}  // namespace oscar
