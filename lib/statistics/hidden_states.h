// The hidden states between the layers of a run: those that enter the layer at work, complete, and those that leave it
// as far as they are. Held, they stay in the memory of the device and are written when the state of the run is saved;
// otherwise they are on disk from the beginning. The states that enter layer i are in the file hidden-i.bin. Two files
// serve by turns and never is one overwritten that the saved state goes on from, so that a run may be killed at any
// moment.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "statistics/collect_work.h"
#include "statistics/spool.h"

namespace oscar {

class HiddenStates {
 public:
  struct Shape {
    std::int64_t rows = 0, hidden = 0;
    at::ScalarType dtype = at::kFloat;
    at::Device device = at::kCPU;
    bool held = false;  // in the memory of the device
  };

  // A run without a saved state: room for two files is reserved (EnvironmentError: disk full), for states that are held
  // when the first state is saved: most runs end before.
  HiddenStates(const WorkDirectory& work, const Shape& shape);
  // A run that goes on in `layer`, whose states are complete; `left`: rows of those that leave it.
  // InputError when a file is missing or has another size.
  HiddenStates(const WorkDirectory& work, const Shape& shape, std::int64_t layer, std::int64_t left);

  bool held() const { return shape_.held; }

  // The states that enter `layer` follow, and those of layer - 2 are not asked for again. No-op where they have begun.
  void begin(std::int64_t layer);
  // In order; rows that are never read may be left out.
  void write(std::int64_t layer, std::int64_t first, const at::Tensor& rows);
  at::Tensor read(std::int64_t layer, std::int64_t first, std::int64_t count) const;  // on the device
  // What was written of them survives a power cut after this.
  void save(std::int64_t layer);
  std::uint64_t unsaved_bytes() const;  // in memory alone

  // A state was saved that goes on in `layer`: older files are free.
  void saved_state(std::int64_t layer);

 private:
  struct States {
    std::int64_t written = 0, saved = 0;  // rows
    at::Tensor memory;                    // [rows, hidden]; undefined: in the file alone
    std::unique_ptr<Spool> file;          // null: no file has them yet
  };
  std::unique_ptr<Spool> open(std::int64_t layer, bool keep) const;
  std::unique_ptr<Spool> file_for(std::int64_t layer);
  at::Tensor new_memory() const;
  void resume(std::int64_t layer, std::int64_t rows, bool in_memory);
  void drop(std::int64_t layer, States& next);
  void save_one(std::int64_t layer, States& states);
  void remove_others(std::int64_t first, std::int64_t last) const;
  fs::path path_of(std::int64_t layer) const;

  const WorkDirectory& work_;
  Shape shape_;
  std::map<std::int64_t, States> states_;  // of layers that may be asked for
  std::int64_t saved_layer_ = -1;
  std::pair<std::int64_t, std::unique_ptr<Spool>> needed_{-1, nullptr};  // by the saved state alone
  std::vector<std::unique_ptr<Spool>> free_;
};

}  // namespace oscar
