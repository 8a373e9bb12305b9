// Outputs of the attention of each layer, which a backward pass would otherwise compute again: a fifth of its work on a
// CPU. Files attention-3.bin beside the hidden states, complete as soon as they have that name. A layer without one is
// computed again. On a GPU, where attention is cheap beside the disk, nothing is kept.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "statistics/collect_work.h"
#include "statistics/spool.h"

namespace oscar {

class AttentionOutputs {
 public:
  // rows of shape `row`, [Hq, d]: outputs of another shape, as those of latent attention, are not kept.
  AttentionOutputs(const WorkDirectory& work, std::int64_t rows, std::vector<std::int64_t> row)
      : work_(work), rows_(rows), row_(std::move(row)) {}

  // The outputs of `layer` follow. done: rows that a run before has written; where their file is gone, the layer has
  // none.
  void begin_layer(std::int64_t layer, std::int64_t done);
  void write(std::int64_t first, const at::Tensor& outputs);  // [n, Hq, d]
  void sync();                                                // what was written survives a power cut after this
  void finish_layer();

  // Of a finished layer, [rows, Hq, d]; nullopt where there are none. InputError for a file of another size.
  static std::optional<Spool> open(const WorkDirectory& work, std::int64_t layer, std::int64_t rows,
                                   at::IntArrayRef row, at::ScalarType dtype);

 private:
  const WorkDirectory& work_;
  std::int64_t rows_;
  std::vector<std::int64_t> row_;
  std::int64_t layer_ = -1, done_ = 0;
  bool kept_ = false;            // in this layer
  std::unique_ptr<Spool> file_;  // from the first write of a layer on
};

}  // namespace oscar
