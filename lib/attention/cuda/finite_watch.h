// Finds rows with NaN or infinity among the rows that kernels code. Kernels record the first such token and KV head of
// each layer and side, and the host checks when it can wait for the GPU.
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
  // Waits for the GPU. NumericalError naming layer, head and token if one of the layers [first, last] has such a row.
  void check(std::int64_t first, std::int64_t last) const;

 private:
  std::int64_t kv_heads_;
  at::Tensor bad_;  // [layers, 2] int32; keys, values
};

}  // namespace oscar
