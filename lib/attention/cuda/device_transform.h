// The transform of a layer's cache rows in GPU memory: matrices, means, clips and deviations of a method. CPU
// reference: basis.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "cache/kv_method.h"
#include "kernels/quantize/quantize_pages.h"

namespace oscar {

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

}  // namespace oscar
