#include "collect/hidden_states.h"

#include <ATen/ATen.h>

namespace oscar {

HiddenStates::HiddenStates(const WorkDirectory& work, const Shape& shape) : work_(work), shape_(shape) {
  if (shape_.held) return;
  remove_others(0);
  free_.push_back(open(1, false));
  free_.push_back(open(0, false));
}

HiddenStates::HiddenStates(const WorkDirectory& work, const Shape& shape, const ResumePoint& point)
    : work_(work), shape_(shape), saved_layer_(point.layer) {
  remove_others(point.layer);
  States& s = states_[point.layer];
  s.file = open(point.layer, true);
  s.file->require(point.entering, shape_.rows);
  s.written = s.saved = shape_.rows;
  if (shape_.held) {
    s.memory = new_memory();
    s.memory.copy_(s.file->read(0, shape_.rows));
  } else {
    free_.push_back(open(point.layer + 1, false));
  }
}

// A run that was killed may have left files of other layers than the one of its saved state.
void HiddenStates::remove_others(std::int64_t layer) const {
  for (const fs::directory_entry& entry : fs::directory_iterator(work_.path())) {
    if (!entry.path().filename().string().starts_with("hidden-") || entry.path() == path_of(layer)) continue;
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

at::Tensor HiddenStates::new_memory() const {
  return at::empty({shape_.rows, shape_.hidden}, at::TensorOptions(shape_.dtype).device(shape_.device));
}

// Drops the states of a layer that is no longer needed: memory and file are reused.
void HiddenStates::drop(std::int64_t layer, States& next) {
  const auto old = states_.find(layer);
  if (old == states_.end()) return;
  next.memory = std::move(old->second.memory);
  if (old->second.file && layer == saved_layer_) {
    needed_ = {layer, std::move(old->second.file)};
  } else if (old->second.file) {
    free_.push_back(std::move(old->second.file));
  }
  states_.erase(old);
}

void HiddenStates::begin(std::int64_t layer) {
  if (states_.contains(layer)) return;
  States s;
  drop(layer - 2, s);
  if (shape_.held && !s.memory.defined()) s.memory = new_memory();
  if (!shape_.held) s.file = file_for(layer);
  states_.emplace(layer, std::move(s));
}

void HiddenStates::write(std::int64_t layer, std::int64_t first, const at::Tensor& rows) {
  const auto found = states_.find(layer);
  TORCH_CHECK(found != states_.end(), "hidden states of layer ", layer, " have not begun");
  States& s = found->second;
  if (s.memory.defined()) {
    s.memory.narrow(0, first, rows.size(0)).copy_(rows);
  } else {
    s.file->write(first, rows);
  }
  s.written = first + rows.size(0);
}

at::Tensor HiddenStates::read(std::int64_t layer, std::int64_t first, std::int64_t count) const {
  const auto found = states_.find(layer);
  TORCH_CHECK(found != states_.end() && first + count <= found->second.written, "hidden states of layer ", layer,
              " are not there");
  const States& s = found->second;
  return s.memory.defined() ? s.memory.narrow(0, first, count) : s.file->read(first, count).to(shape_.device);
}

void HiddenStates::save_one(std::int64_t layer, States& s) {
  if (s.file && s.saved == s.written) return;
  if (!s.file) s.file = file_for(layer);
  if (s.memory.defined()) s.file->write(s.saved, s.memory.narrow(0, s.saved, s.written - s.saved));
  s.file->sync();
  s.saved = s.written;
}

void HiddenStates::save(std::int64_t layer) {
  if (const auto found = states_.find(layer); found != states_.end()) save_one(layer, found->second);
}

SpoolSum HiddenStates::saved_sum(std::int64_t layer) const {
  const auto found = states_.find(layer);
  return found != states_.end() && found->second.file ? found->second.file->sum() : SpoolSum{};
}

std::uint64_t HiddenStates::unsaved_bytes() const {
  const std::uint64_t row = c10::elementSize(shape_.dtype) * static_cast<std::uint64_t>(shape_.hidden);
  std::uint64_t bytes = 0;
  for (const auto& [layer, s] : states_) {
    if (s.memory.defined()) bytes += row * static_cast<std::uint64_t>(s.written - s.saved);
  }
  return bytes;
}

void HiddenStates::saved_state(std::int64_t layer) {
  saved_layer_ = layer;
  if (needed_.second && needed_.first != layer) free_.push_back(std::move(needed_.second));
}

}  // namespace oscar
