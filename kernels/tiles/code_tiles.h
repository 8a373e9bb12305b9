// Codes of the methods of other papers on a GPU: replaces each value by its decoded value. CPU reference: code_tile()
// of lib/methods/tile_codes.h. All codes give the same bits except Lloyd-Max, whose FP64 sums may differ in the last
// place. Raw pointers, no LibTorch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace oscar::kernels {

// As CacheCode of lib/registry/method_spec.h, which defines each code.
enum class TileCode : std::int32_t { kUniform, kIntegerZero, kSymmetric4, kFloat8, kLloydMax };

// T tokens, H heads, D head_dim. All pointers are device pointers.
struct CodeTilesParams {
  float* rows = nullptr;  // [T, H, D] FP32, coded in place
  std::int64_t tokens = 0;
  std::int32_t heads = 0, head_dim = 0;
  // Codes channels [first_channel, first_channel + channels); other channels are unchanged.
  std::int32_t first_channel = 0, channels = 0;
  // A scale is shared by quant_group tokens of a channel (T must be a multiple) or by quant_group channels of a token
  // (channels must be a multiple).
  bool channel_axis = false;
  std::int32_t quant_group = 0;
  TileCode code = TileCode::kUniform;
  std::int32_t bits = 2;
  float clip = 1.0f;                  // kIntegerZero
  const double* centroids = nullptr;  // [2^bits] ascending, kLloydMax
};

// cudaErrorInvalidValue if sizes do not fit. Allocates nothing, does not synchronize. Equal inputs give equal bytes.
cudaError_t code_tiles(const CodeTilesParams& params, cudaStream_t stream);

}  // namespace oscar::kernels
