#include "attention/cuda/device_transform.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "kernels/decode/tile_phases.h"

namespace oscar {

const float* DevicePhases::rows(std::int64_t positions) {
  const std::int64_t held = rows_.defined() ? rows_.size(0) : 0;
  if (positions > held) rows_ = phases_->rows(0, std::max(positions, held + held / 2)).contiguous().to(device_);
  return rows_.const_data_ptr<float>();
}

const std::uint16_t* DevicePhases::tile() {
  if (!tile_.defined()) {
    const at::Tensor& frequencies = phases_->frequencies().inverse;  // [d / 2] FP32 on the CPU
    const auto d = static_cast<int>(2 * frequencies.size(0));
    at::Tensor table = at::empty({kernels::tile_phases_count(d)}, at::kShort);
    kernels::fill_tile_phases(d, frequencies.const_data_ptr<float>(),
                              reinterpret_cast<std::uint16_t*>(table.mutable_data_ptr<std::int16_t>()));
    tile_ = table.to(device_);
  }
  return reinterpret_cast<const std::uint16_t*>(tile_.const_data_ptr<std::int16_t>());
}

}  // namespace oscar
