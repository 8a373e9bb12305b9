// What a layer's transform needs in GPU memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "cache/kv_method.h"
#include "kernels/quantize/quantize_pages.h"
#include "model/rope_phases.h"

namespace oscar {

// The transform of a layer's cache rows in GPU memory: matrices, means, clips and deviations of a method. CPU
// reference: basis.h.
struct DeviceSide {
  at::Tensor forward, back;   // [1 or Hkv, d, d] FP32; undefined: identity
  at::Tensor mean;            // [Hkv, d] or undefined
  bool rotated_mean = false;  // keys: `mean` is the mean before RoPE
  at::Tensor clip, sigma;     // [Hkv], [Hkv, 4]
};

DeviceSide device_side(const KvMethod& method, std::int64_t kv_heads, std::int64_t layer, Side side, at::Device device);

kernels::QuantizeEncoder kernel_encoder(Encoder encoder);

// o = o' back (+ mean), outputs [T, Hq, d] FP32 on the device: restore_outputs() without sink logits.
at::Tensor restore_outputs_on_device(const at::Tensor& outputs, const DeviceSide& value);

// Phases of positions in GPU memory, for keys that are centered before RoPE (model/rope_phases.h).
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
