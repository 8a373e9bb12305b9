// The sampled rows that codebooks are learned from, read in pieces.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "layout/side.h"
#include "statistics/statistics.h"

namespace oscar {

// InputError where the statistics do not know the one rotary embedding of all channels that keys before RoPE need.
void require_rope(const Statistics& statistics);

// Keys or values of one layer: of tokens from position `sink` on, at most `most` (0: all), in the order of the sample;
// keys before RoPE where asked. The statistics must outlive it.
class CodebookRows {
 public:
  // InputError where rotations cannot be taken back.
  CodebookRows(const Statistics& statistics, std::size_t layer, Side side, bool before_rope, std::int64_t sink,
               std::int64_t most);

  std::int64_t count() const { return static_cast<std::int64_t>(tokens_.size()); }
  at::Tensor read(std::int64_t first, std::int64_t n) const;  // [n, Hkv, d] FP32
  // Squared gradients of the same rows, of keys those before RoPE; undefined where the statistics have none.
  at::Tensor gradients(std::int64_t first, std::int64_t n) const;
  bool has_gradients() const;

 private:
  const Statistics& statistics_;
  const LayerMoments& moments_;
  Side side_;
  bool before_rope_;
  std::vector<std::int64_t> tokens_;
};

}  // namespace oscar
