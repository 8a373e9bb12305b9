// Inverts RoPE: computes rows before RoPE from rows with RoPE applied.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/attention.h"
#include "model/rope.h"

namespace oscar {

// x [..., d] with the rotations of its rows, cos and sin [..., P] FP32 (broadcast over x), 2 P <= d. Rotates the pairs
// (i, i + P), i < P, back; the other channels stay. RoPE_{-p} x, FP32; a linear map of each row.
at::Tensor undo_rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

// cos and sin for the positions of a batch. The attention factor of RoPE (yarn) is divided out, so the result is
// exactly the rows before RoPE.
class Unrotation {
 public:
  Unrotation(const RopeFrequencies& frequencies, at::Device device);
  struct Rows {
    at::Tensor cos, sin;  // [T, P] FP32 on the device
  };
  const Rows& rows_of(const SequenceBatch& batch);  // valid until the next call

 private:
  RopeFrequencies frequencies_;
  at::Device device_;
  Rows table_;  // for positions from 0 on
  Rows rows_;   // of the last batch
  std::vector<std::int64_t> starts_, lengths_;
};

}  // namespace oscar
