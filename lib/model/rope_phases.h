// Phases of positions under RoPE, for keys that are centered by one mean before RoPE.
//   c_p = (a cos(theta_f p), a sin(theta_f p)), f = 0 .. d/2 - 1; a: the attention factor (yarn), otherwise 1.
// With halves m = (m1, m2), RoPE at position p maps m to (m1 C - m2 S, m2 C + m1 S), and
//   <q, RoPE_p m> = <u(q), c_p>,   u(q) = (q1 m1 + q2 m2, q2 m1 - q1 m2).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <vector>

#include "model/rope.h"

namespace oscar {

// [T, d] FP32: one row per position. The angle is the model's FP32 product and the functions are evaluated in double,
// so a row depends only on its position.
at::Tensor phase_rows(const RopeFrequencies& frequencies, const std::vector<std::int64_t>& positions);

// means [H, d], rope_phases [T, d] -> the means with RoPE applied at each position, [T, H, d] FP32, on the device of
// the phases.
at::Tensor rotated_means(const at::Tensor& means, const at::Tensor& rope_phases);
// u(q): q [T, Hq, d] and the mean [Hkv, d] of each query head's KV head -> [T, Hq, d] FP32, on the device of q.
at::Tensor phase_queries(const at::Tensor& q, const at::Tensor& means);

// Caches the rows of positions from 0 on and computes them on first use. Thread-safe.
class RopePhases {
 public:
  explicit RopePhases(const RopeFrequencies& frequencies) : frequencies_(frequencies) {}
  // [count, d]; stays valid while the tensor is held.
  at::Tensor rows(std::int64_t first, std::int64_t count) const;
  const RopeFrequencies& frequencies() const { return frequencies_; }

 private:
  RopeFrequencies frequencies_;
  mutable std::mutex mutex_;
  mutable at::Tensor table_;
};

}  // namespace oscar
