// Weights whose codes are stored row by row: FP8 E4M3 and INT8 with a scale per tensor, per row or per block; MXFP4;
// NVFP4; INT4 and INT8 as packed by compressed-tensors. Computed in FP32, rounded once to the result type.
//
//   w[n, k] = (code[n, k] - zero[n, g]) scale[n / block_rows, g],  g = groups[k], or k / block_columns without them
//
// E4M3, I8 and E2M1 have no zero point. CPU reference, bit for bit: WeightFormat::dequantize of lib/weights/fp8.cpp,
// mxfp4.cpp, nvfp4.cpp and packed_integers.cpp. Raw pointers, no LibTorch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/weights/weight_types.h"

namespace oscar::kernels {

// 4-bit codes: two per byte, the low half first. E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
enum class RowCode : std::int32_t { kE4M3, kInteger8, kE2M1, kUnsigned4, kUnsigned8 };

// The factor or divisor of a stored scale (NVFP4).
enum class SecondScale : std::int32_t { kNone, kMultiplies, kDivides };

// N rows, K columns, G groups of columns, b bits of an unsigned code. All pointers are device pointers.
struct RowCodesParams {
  const std::uint8_t* codes = nullptr;   // [N, row_bytes]
  const void* scale = nullptr;           // [ceil(N / block_rows), G] of scale_type
  const std::int32_t* zeros = nullptr;   // [ceil(N b / 32), G], packed along the rows; null: 2^(b - 1) everywhere
  const std::int32_t* groups = nullptr;  // [K], each in 0 .. G - 1; null: columns in order
  void* weight = nullptr;                // [N, K] of weight_type
  std::int64_t row_bytes = 0;
  std::int32_t rows = 0, columns = 0, column_groups = 1;  // N, K, G
  std::int32_t block_rows = 1;                            // rows of one scale
  std::int32_t block_columns = 1;                         // columns of one scale; not read if groups are given
  RowCode code = RowCode::kE4M3;
  ScaleType scale_type = ScaleType::kFloat32;
  WeightType weight_type = WeightType::kBFloat16;
  SecondScale second = SecondScale::kNone;
  float second_scale = 1.0f;
};

// cudaErrorInvalidValue if sizes do not fit. Allocates nothing, does not synchronize, may be captured.
cudaError_t dequantize_row_codes(const RowCodesParams& params, cudaStream_t stream);

}  // namespace oscar::kernels
