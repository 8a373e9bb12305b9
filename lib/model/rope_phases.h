// Phases of positions under RoPE, and what follows from them for keys that are centered by one mean before rotation.
//   c_p = (a cos(theta_f p), a sin(theta_f p)), f = 0 .. d/2 - 1; a: the attention factor (yarn), else 1.
// With halves m = (m1, m2), RoPE at position p takes m to (m1 C - m2 S, m2 C + m1 S), and
//   <q, RoPE_p m> = <u(q), c_p>,   u(q) = (q1 m1 + q2 m2, q2 m1 - q1 m2).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <vector>

#include "model/rope.h"

namespace oscar {

// [T, d] FP32: the row of each position. The angle is the model's own (FP32 product), the functions are evaluated in
// double, so that a row depends on its position alone.
at::Tensor phase_rows(const RopeFrequencies& frequencies, const std::vector<std::int64_t>& positions);

// means [H, d], rope_phases [T, d] -> the means as they stand at each position, [T, H, d] FP32, on the device of
// the phases.
at::Tensor rotated_means(const at::Tensor& means, const at::Tensor& rope_phases);
// u(q): q [T, Hq, d], means [Hkv, d] of the KV head that each query head reads -> [T, Hq, d] FP32, on
// the device of q.
at::Tensor phase_queries(const at::Tensor& q, const at::Tensor& means);

// Rows of the positions from 0 on, made when they are first asked for. Safe for several threads.
class RopePhases {
 public:
  explicit RopePhases(const RopeFrequencies& frequencies) : frequencies_(frequencies) {}
  // [count, d]; valid as long as the tensor is held.
  at::Tensor rows(std::int64_t first, std::int64_t count) const;
  const RopeFrequencies& frequencies() const { return frequencies_; }

 private:
  RopeFrequencies frequencies_;
  mutable std::mutex mutex_;
  mutable at::Tensor table_;
};

}  // namespace oscar
