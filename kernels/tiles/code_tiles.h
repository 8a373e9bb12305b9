// Codes of the methods of other papers on a GPU: each value is replaced by what a reader of the cache gets back. CPU
// reference: code_tile() of lib/methods/tile_codes.h; the same bits for all codes but Lloyd-Max, whose FP64 sums may
// differ in the last place. Raw pointers, no LibTorch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace oscar::kernels {

// As CacheCode of lib/registry/method_spec.h, which says what each one is.
enum class TileCode : std::int32_t { kUniform, kIntegerZero, kSymmetric4, kFloat8, kLloydMax };

// Letters: T tokens, H heads, D head_dim. All pointers are device pointers.
struct CodeTilesParams {
  float* rows = nullptr;  // [T, H, D] FP32, coded in place
  std::int64_t tokens = 0;
  std::int32_t heads = 0, head_dim = 0;
  // Channels [first_channel, first_channel + channels) are coded, others are left alone.
  std::int32_t first_channel = 0, channels = 0;
  // quant_group tokens of a channel (T is a multiple of it) share a scale, or quant_group channels of a token (channels
  // are a multiple of it).
  bool channel_axis = false;
  std::int32_t quant_group = 0;
  TileCode code = TileCode::kUniform;
  std::int32_t bits = 2;
  float clip = 1.0f;                  // kIntegerZero
  const double* centroids = nullptr;  // [2^bits] ascending, kLloydMax
};

// cudaErrorInvalidValue where sizes do not fit. Allocates nothing, does not synchronize. Equal inputs give equal bytes.
cudaError_t code_tiles(const CodeTilesParams& params, cudaStream_t stream);

}  // namespace oscar::kernels
