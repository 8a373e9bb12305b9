// Merges two parts of a softmax attention: outputs with the logarithms of their sums of exponentials, as flash
// attention returns them. CPU reference: Parts.merge() of python/oscar_kv/ops/merge.py.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace oscar::kernels {

// N rows, H heads, D head_dim. All pointers are device pointers.
struct MergeOutputsParams {
  std::uint16_t* out;         // [N, H, D] BF16, merged in place; 16-byte aligned rows
  std::int64_t out_stride;    // elements from one row to the next, a multiple of 8
  float* lse;                 // [H, N], merged in place; -inf: the part had no visible key
  const std::uint16_t* part;  // [N, H, D] BF16, contiguous
  const float* part_lse;      // [H, N]
  std::int32_t rows, heads, head_dim;
};

// cudaErrorInvalidValue if head_dim is not a power of two from 8 to 512. Allocates nothing, does not synchronize, may
// be captured.
cudaError_t merge_outputs(const MergeOutputsParams& params, cudaStream_t stream);

}  // namespace oscar::kernels
