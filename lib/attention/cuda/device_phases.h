// Phases of positions in the memory of a GPU, for keys without the mean they had before RoPE (model/rope_phases.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "model/rope_phases.h"

namespace oscar {

class DevicePhases {
 public:
  // phases: null where no transform needs them.
  DevicePhases(std::shared_ptr<const RopePhases> phases, at::Device device)
      : phases_(std::move(phases)), device_(device) {}

  // [positions or more, d] FP32: cosines, then sines, of each position from 0 on. The pointer is good until more are
  // asked for.
  const float* rows(std::int64_t positions);
  // kernels/decode/tile_phases.h: the two tables of the 64 positions of a page, FP16 in operand order.
  const std::uint16_t* tile();

 private:
  std::shared_ptr<const RopePhases> phases_;
  at::Device device_;
  at::Tensor rows_, tile_;
};

}  // namespace oscar
