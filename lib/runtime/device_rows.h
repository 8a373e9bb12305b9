// What the cache would hold of a sequence, worked out in the memory of a GPU by the kernels that write and read pages.
// CPU twin: cached_rows() of reconstruction.h, bit for bit where the method is not another paper's. CMake chooses
// device_rows_absent.cpp where CUDA is off.
#pragma once

#include <cstdint>

#include "runtime/method.h"
#include "runtime/prefill_core.h"

namespace oscar {

// rows: [T, Hkv, d] in the model's basis on a GPU, any floating type. Tensors of the result are on that GPU.
// NumericalError when a row is not finite, EnvironmentError when the kernels are not built for the row's size.
CachedRows cached_rows_on_device(const KvMethod& method, std::int64_t layer, Side side, const at::Tensor& rows);

}  // namespace oscar
