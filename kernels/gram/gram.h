// Second moments of BF16 rows: sum += x^T x for each KV head, over tokens and the heads of its GQA group. CPU
// reference, within 1e-6: add_gram() of lib/collect/accumulator.h. Products are exact in FP32 and are added in FP32
// over 128 rows at a time; all further sums are FP64, in a fixed order. A shift c is for rows whose mean may be
// hundreds of times their deviation. x - c, as the sum of two BF16 numbers exact to 17 bits, is then multiplied in
// place of x, and c is added back in FP64. Raw pointers, no LibTorch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace oscar::kernels {

// T tokens, H heads, Hkv KV heads (head h belongs to KV head h / (H / Hkv)), D head_dim. Device pointers.
struct GramParams {
  const std::uint16_t* x = nullptr;      // [T, H, D] BF16, 16-byte aligned
  std::int64_t stride = 0;               // elements from one token to the next, a multiple of 8
  double* sum = nullptr;                 // [Hkv, D, D]
  const std::uint16_t* shift = nullptr;  // [Hkv, D] BF16, or null; then H = Hkv
  double* row_sum = nullptr;             // [Hkv, D] gets the sum of x added; only with shift
  double* workspace = nullptr;           // gram_workspace_bytes(...)
  std::int64_t tokens = 0;
  std::int32_t heads = 0, kv_heads = 0, head_dim = 0;
};

bool gram_built(int head_dim);  // 64 and 128
std::size_t gram_workspace_bytes(int kv_heads, int head_dim);
// cudaErrorInvalidValue for a head_dim that is not built. Allocates nothing, does not synchronize. Equal inputs give
// equal bits, on any GPU.
cudaError_t add_gram(const GramParams& params, cudaStream_t stream);

}  // namespace oscar::kernels
