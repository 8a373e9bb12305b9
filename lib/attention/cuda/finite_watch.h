// Where a row that the kernels code is not finite: they write down the first such token and KV head of each layer and
// side, and the host looks when it can wait for the GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "layout/side.h"

namespace oscar {

class FiniteWatch {
 public:
  FiniteWatch(std::int64_t layers, std::int64_t kv_heads, at::Device device);

  // `bad` of kernels::QuantizePagesParams, in device memory.
  std::int32_t* of(std::int64_t layer, Side side) const;
  // Waits for the GPU. NumericalError that names layer, head and token, where one of layers [first, last] has any.
  void check(std::int64_t first, std::int64_t last) const;

 private:
  std::int64_t kv_heads_;
  at::Tensor bad_;  // [layers, 2] int32; keys, values
};

}  // namespace oscar
