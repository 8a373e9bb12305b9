// The hidden states between the layers of a run: all states that enter the current layer, and the states that leave it
// so far. Held states stay in device memory and are written when the run's state is saved. Otherwise they are on disk
// from the beginning. The states that enter layer i are in the file hidden-i.bin. Two files are used in turn, and a
// file that the saved state needs is never overwritten. So a run may be killed at any moment.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "collect/collect_work.h"
#include "collect/spool.h"

namespace oscar {

class HiddenStates {
 public:
  struct Shape {
    std::int64_t rows = 0, hidden = 0;
    at::ScalarType dtype = at::kFloat;
    at::Device device = at::kCPU;
    bool held = false;  // in device memory
  };

  // A run without a saved state. It reserves room for two files (EnvironmentError: disk full). Held states reserve it
  // only when the first state is saved, since most runs end before.
  HiddenStates(const WorkDirectory& work, const Shape& shape);
  // A run that continues at the beginning of `point.layer`. InputError if the file of its states is missing, or has
  // another size or content.
  HiddenStates(const WorkDirectory& work, const Shape& shape, const ResumePoint& point);

  bool held() const { return shape_.held; }

  // Announces that the states that enter `layer` follow and states of layer - 2 are no longer needed. No-op if they
  // have begun.
  void begin(std::int64_t layer);
  // Call in order; rows that are never read may be omitted.
  void write(std::int64_t layer, std::int64_t first, const at::Tensor& rows);
  at::Tensor read(std::int64_t layer, std::int64_t first, std::int64_t count) const;  // on the device
  // After this call, the written states of the layer survive a power cut.
  void save(std::int64_t layer);
  SpoolSum saved_sum(std::int64_t layer) const;  // of the states that enter the layer, as they are on disk
  std::uint64_t unsaved_bytes() const;           // only in memory

  // Call after a state was saved that continues in `layer`: older files become free.
  void saved_state(std::int64_t layer);

 private:
  struct States {
    std::int64_t written = 0, saved = 0;  // rows
    at::Tensor memory;                    // [rows, hidden]; undefined: only in the file
    std::unique_ptr<Spool> file;          // null: they are in no file yet
  };
  std::unique_ptr<Spool> open(std::int64_t layer, bool keep) const;
  std::unique_ptr<Spool> file_for(std::int64_t layer);
  at::Tensor new_memory() const;
  void drop(std::int64_t layer, States& next);
  void save_one(std::int64_t layer, States& states);
  void remove_others(std::int64_t layer) const;
  fs::path path_of(std::int64_t layer) const;

  const WorkDirectory& work_;
  Shape shape_;
  std::map<std::int64_t, States> states_;  // layers whose states may still be read
  std::int64_t saved_layer_ = -1;
  std::pair<std::int64_t, std::unique_ptr<Spool>> needed_{-1, nullptr};  // needed only by the saved state
  std::vector<std::unique_ptr<Spool>> free_;
};

}  // namespace oscar
