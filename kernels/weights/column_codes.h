// Weights whose codes are stored transposed, [in, out], and packed in words of 32 bits: AWQ in its GEMM layout and
// GPTQ. Computed in FP32, rounded once to the result type.
//
//   w[n, k] = (code[k, n] - (zero[g, n] + zero_offset)) scale[g, n],  g = groups[k], or k / block_columns without them
//
// CPU reference, bit for bit: WeightFormat::dequantize of lib/weights/awq.cpp and gptq.cpp. Raw pointers, no LibTorch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/weights/weight_types.h"

namespace oscar::kernels {

// AWQ packs 8 codes along N, in the order of columns 0, 2, 4, 6, 1, 3, 5, 7; GPTQ packs along K in order. The lowest
// bits of a word come first.
enum class ColumnCode : std::int32_t { kAwq, kGptq4, kGptq8 };

// N rows and K columns of the weight, G groups of columns, b bits of a code. All pointers are device pointers.
struct ColumnCodesParams {
  const std::uint32_t* codes = nullptr;  // AWQ: [K, ceil(N / 8)]; GPTQ: [ceil(K b / 32), N]
  const std::uint32_t* zeros = nullptr;  // [G, ceil(N b / 32)], packed along N
  const void* scale = nullptr;           // [G, N] of scale_type: FP32, BF16 or F16
  const std::int32_t* groups = nullptr;  // [K], each in 0 .. G - 1; null: columns in order
  void* weight = nullptr;                // [N, K] of weight_type
  std::int32_t rows = 0, columns = 0;    // N, K
  std::int32_t block_columns = 1;        // columns of a group; not read if groups are given
  std::int32_t zero_offset = 0;
  ColumnCode code = ColumnCode::kAwq;
  ScaleType scale_type = ScaleType::kFloat16;
  WeightType weight_type = WeightType::kBFloat16;
};

// cudaErrorInvalidValue if sizes do not fit. Allocates nothing, does not synchronize, may be captured.
cudaError_t dequantize_column_codes(const ColumnCodesParams& params, cudaStream_t stream);

}  // namespace oscar::kernels
