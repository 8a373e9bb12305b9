// Brings outputs of decode attention out of the cache basis to the engine's output: row times matrix, plus mean, as
// BF16. CPU reference: LayerTransform.outputs() of python/oscar_kv/cache/transform.py. Raw pointers, no LibTorch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace oscar::kernels {

// B sequences, Hq query heads, Hkv KV heads, D head_dim. All pointers are device pointers.
struct ModelOutputsParams {
  const float* rows;            // [B, Hq, D] FP32
  const std::int32_t* lengths;  // [B]; 0: the sequence's output is 0, and its rows are not read
  const float* matrix;          // [matrix_heads, D, D]
  const float* mean;            // [Hkv, D] added afterwards, or null
  std::uint16_t* out;           // [B, Hq, D] BF16
  std::int64_t out_stride;      // elements from one sequence to the next
  std::int32_t batch, query_heads, kv_heads, head_dim, matrix_heads;  // matrix_heads: 1 or Hkv
};

// cudaErrorInvalidValue for a head_dim other than 64, 128, 256 and 512. Allocates nothing, does not synchronize, may be
// captured. Equal inputs give equal bits.
cudaError_t model_outputs(const ModelOutputsParams& params, cudaStream_t stream);

}  // namespace oscar::kernels
