// Phases of positions in GPU memory, for keys that are centered before RoPE (model/rope_phases.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "model/rope_phases.h"

namespace oscar {

class DevicePhases {
 public:
  // phases: null if no transform needs them.
  DevicePhases(std::shared_ptr<const RopePhases> phases, at::Device device)
      : phases_(std::move(phases)), device_(device) {}

  // [at least `positions`, d] FP32: cosines, then sines, of each position from 0 on. The pointer is valid until a call
  // with more positions.
  const float* rows(std::int64_t positions);
  // kernels/decode/tile_phases.h: the two tables for the 64 positions of a page, FP16 in operand order.
  const std::uint16_t* tile();

 private:
  std::shared_ptr<const RopePhases> phases_;
  at::Device device_;
  at::Tensor rows_, tile_;
};

}  // namespace oscar
