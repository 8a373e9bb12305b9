// Computes in GPU memory the rows that the cache would hold for a sequence, with the kernels that write and read pages.
// CPU reference: decoded_rows() of prefill_core.h, bit for bit. If CUDA is off, CMake compiles
// no_cuda/device_decoded_rows.cpp.
#pragma once

#include <cstdint>

#include "attention/prefill_core.h"
#include "cache/kv_method.h"

namespace oscar {

// For a coded layer of transform_coder() (cache/rows_coder.h). rows: [T, Hkv, d],
// positions from 0 on, in the model's basis on a GPU, any floating type. The result's tensors are on the same GPU.
// NumericalError if a row is not finite, EnvironmentError if the kernels are not built for the row size.
CachedRows decoded_rows_on_device(const KvMethod& method, std::int64_t layer, Side side, const at::Tensor& rows);

}  // namespace oscar
