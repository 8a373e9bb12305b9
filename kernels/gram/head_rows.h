// Rows of attention as FP32 matrices per KV head, in one pass over the rows: weighted, with RoPE inverted, or both.
// Separate products and sums in FP32 give the same bits (undo_rope() of lib/collect/unrotation.h). Raw pointers, no
// LibTorch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace oscar::kernels {

// T tokens, H heads, Hkv KV heads, g = H / Hkv, D head_dim, P pairs of channels that RoPE rotates. Device pointers.
struct HeadRowsParams {
  const std::uint16_t* x = nullptr;  // [T, H, D] BF16, 8-byte aligned
  std::int64_t stride = 0;           // elements from one token to the next, a multiple of 4
  const float* square = nullptr;     // [H, T], square_stride apart, or null: its square root scales row t of head h
  std::int64_t square_stride = 0;
  const float* cos = nullptr;  // [T, P], with sin, or null
  const float* sin = nullptr;
  float* plain = nullptr;   // [Hkv copies, T g, D], weighted, each matrix `copies` times; or null
  float* before = nullptr;  // [Hkv, T g, D], weighted, with RoPE inverted; or null
  bool by_member = false;   // row m T + t for member m of the group; otherwise t g + m
  std::int64_t tokens = 0;
  std::int32_t heads = 0, kv_heads = 0, head_dim = 0, pairs = 0, copies = 1;
};

bool head_rows_built(int head_dim, int pairs);  // multiples of 4
cudaError_t head_rows(const HeadRowsParams& params, cudaStream_t stream);

}  // namespace oscar::kernels
