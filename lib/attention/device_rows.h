// What the cache would hold of a sequence, worked out in the memory of a GPU by the kernels that write and read pages.
// CPU reference: decoded_rows() of reconstruction.h, bit for bit. CMake chooses no_cuda/device_rows.cpp where CUDA is
// off.
#pragma once

#include <cstdint>

#include "attention/prefill_core.h"
#include "cache/kv_method.h"

namespace oscar {

// A coded layer of transform_coder() (cache/coders.h), whose encoder is not feedback. rows: [T, Hkv, d] of the
// positions from 0 on, in the model's basis on a GPU, any floating type. Tensors of the result
// are on that GPU. NumericalError when a row is not finite, EnvironmentError when the kernels are not built for the
// row's size.
CachedRows decoded_rows_on_device(const KvMethod& method, std::int64_t layer, Side side, const at::Tensor& rows);

}  // namespace oscar
