#include "statistics/hidden_states.h"

#include <ATen/ATen.h>

namespace oscar {

HiddenStates::HiddenStates(const WorkDirectory& work, const Shape& shape) : work_(work), shape_(shape) {
  if (shape_.keep_all || shape_.held) return;
  free_.push_back(open(1, false));
  free_.push_back(open(0, false));
}

HiddenStates::HiddenStates(const WorkDirectory& work, const Shape& shape, std::int64_t layer, std::int64_t left)
    : work_(work), shape_(shape), saved_layer_(layer) {
  if (!shape_.keep_all) remove_others(layer, left > 0 ? layer + 1 : layer);
  resume(layer, shape_.rows);
  if (left > 0) {
    resume(layer + 1, left);
  } else if (!shape_.keep_all && !shape_.held) {
    free_.push_back(open(layer + 1, false));
  }
}

// A run that was killed while it saved its state may have left a file of a later layer.
void HiddenStates::remove_others(std::int64_t first, std::int64_t last) const {
  for (const fs::directory_entry& entry : fs::directory_iterator(work_.path())) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("hidden-") || entry.path() == path_of(first) || entry.path() == path_of(last)) continue;
    fs::remove(entry.path());
  }
}

fs::path HiddenStates::path_of(std::int64_t layer) const {
  return work_.file("hidden-" + std::to_string(layer) + ".bin");
}

std::unique_ptr<Spool> HiddenStates::open(std::int64_t layer, bool keep) const {
  return std::make_unique<Spool>(path_of(layer), shape_.rows, std::vector<std::int64_t>{shape_.hidden}, shape_.dtype,
                                 keep);
}

std::unique_ptr<Spool> HiddenStates::file_for(std::int64_t layer) {
  if (free_.empty()) return open(layer, false);
  std::unique_ptr<Spool> file = std::move(free_.back());
  free_.pop_back();
  file->rename(path_of(layer));
  return file;
}

void HiddenStates::resume(std::int64_t layer, std::int64_t rows) {
  States& s = of(layer);
  s.layer = layer;
  s.file = open(layer, true);
  s.written = s.saved = rows;
  if (!shape_.held) return;
  s.memory = at::empty({shape_.rows, shape_.hidden}, at::TensorOptions(shape_.dtype).device(shape_.device));
  s.memory.narrow(0, 0, rows).copy_(s.file->read(0, rows));
}

void HiddenStates::begin(std::int64_t layer) {
  States& s = of(layer);
  if (s.layer == layer) return;
  if (s.file && !shape_.keep_all) {
    if (s.layer == saved_layer_) {
      needed_ = {s.layer, std::move(s.file)};
    } else {
      free_.push_back(std::move(s.file));
    }
  }
  s.file.reset();
  s.layer = layer;
  s.written = s.saved = 0;
  if (shape_.held && !s.memory.defined()) {
    s.memory = at::empty({shape_.rows, shape_.hidden}, at::TensorOptions(shape_.dtype).device(shape_.device));
  }
  if (!shape_.held) s.file = file_for(layer);
}

void HiddenStates::write(std::int64_t layer, std::int64_t first, const at::Tensor& rows) {
  States& s = of(layer);
  TORCH_CHECK(s.layer == layer && first <= s.written, "hidden states of layer ", layer, " have not begun");
  if (shape_.held) {
    s.memory.narrow(0, first, rows.size(0)).copy_(rows);
  } else {
    s.file->write(first, rows);
  }
  s.written = first + rows.size(0);
}

at::Tensor HiddenStates::read(std::int64_t layer, std::int64_t first, std::int64_t count) const {
  const States& s = of(layer);
  TORCH_CHECK(s.layer == layer && first + count <= s.written, "hidden states of layer ", layer, " are not there");
  return shape_.held ? s.memory.narrow(0, first, count) : s.file->read(first, count).to(shape_.device);
}

void HiddenStates::save(std::int64_t layer) {
  States& s = of(layer);
  if (!s.file) s.file = file_for(layer);
  if (shape_.held && s.written > s.saved) {
    s.file->write(s.saved, s.memory.narrow(0, s.saved, s.written - s.saved));
    s.saved = s.written;
  }
  s.file->sync();
}

void HiddenStates::saved_state(std::int64_t layer) {
  saved_layer_ = layer;
  if (needed_.second && needed_.first != layer) free_.push_back(std::move(needed_.second));
}

}  // namespace oscar
