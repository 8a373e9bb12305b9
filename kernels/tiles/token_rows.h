// Steps before and after the codes of other papers' methods, for rows on a GPU. CPU references, bit for bit:
// hadamard_rows() of lib/methods/hadamard_rows.h and token_norm() of lib/methods/group_codes.h. Raw pointers, no
// LibTorch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace oscar::kernels {

// Sylvester-Hadamard transform in place of blocks of `order` floats, a power of two up to 8192, divided by the root of
// order. data: [blocks, order] FP32. cudaErrorInvalidValue for another order.
cudaError_t hadamard_rows(float* data, std::int64_t blocks, std::int32_t order, cudaStream_t stream);

// norms[t] = sqrt(max(sum of squares of row t, 1e-8)), summed in FP64 from the first element to the last.
// rows: [tokens, width] FP32, norms: [tokens].
cudaError_t token_norms(const float* rows, std::int64_t tokens, std::int64_t width, float* norms, cudaStream_t stream);

}  // namespace oscar::kernels
