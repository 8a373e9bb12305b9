// How far an error in a key moves the attention output, summed over the pairs outside the windows for some queries of
// one sequence, without a matrix of scores. With attention weights p_ij and the pairs sink <= j <= i - recent, for each
// query head and query i:
//   moved_i = sum_j p_ij^2 |u_j - w_i|^2,   seen_i = sum_j p_ij^2.
// CPU reference: the blocks of FarPairAccumulator (lib/collect/far_pairs.cpp), within 1e-4. Products of queries and
// keys are exact in FP32. p_ij^2 and u_j are each the sum of two BF16 numbers, exact to 16 bits, and the same numbers
// in all three terms of the square. far_pair_sums_hopper.cu gives the same bits on Hopper in less time. Raw pointers,
// no LibTorch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace oscar::kernels {

// T tokens of the sequence, Hq query heads, Hkv KV heads, D head_dim, C queries. Device pointers.
struct FarPairsParams {
  const std::uint16_t* q = nullptr;       // [T, Hq, D] BF16, q_stride elements from token to token
  const std::uint16_t* k = nullptr;       // [T, Hkv, D] BF16, k_stride
  const std::uint16_t* u_high = nullptr;  // [Hq, T, D] BF16: u = high + low
  const std::uint16_t* u_low = nullptr;
  const float* u_norm = nullptr;            // [Hq, T] |u|^2
  const float* w = nullptr;                 // [Hq, C, D] FP32: w_i, including the center of its head
  const float* center = nullptr;            // [Hq, D]
  const float* sink_logits = nullptr;       // [Hq], or null
  float* moved = nullptr;                   // [Hq, C]
  float* seen = nullptr;                    // [Hq, C]
  std::int64_t q_stride = 0, k_stride = 0;  // multiples of 8
  std::int32_t tokens = 0, query_heads = 0, kv_heads = 0, head_dim = 0;
  std::int32_t first = 0, count = 0;  // queries [first, first + count), first >= sink + recent
  std::int32_t sink = 0, recent = 0;
  float scale = 1.0f;
};

// Splits rows [H, T, D] FP32 minus center [H, D] into sums of two BF16 numbers, and computes the squared norm of each
// sum.
struct SplitRowsParams {
  const float* rows = nullptr;
  const float* center = nullptr;
  std::uint16_t* high = nullptr;  // [H, T, D] BF16
  std::uint16_t* low = nullptr;
  float* norm = nullptr;  // [H, T]
  std::int64_t tokens = 0;
  std::int32_t heads = 0, head_dim = 0;
};

bool far_pairs_built(int head_dim);  // 64 and 128
// cudaErrorInvalidValue for a head_dim that is not built. The functions allocate nothing and do not synchronize. Equal
// inputs give equal bits.
cudaError_t far_pairs(const FarPairsParams& params, cudaStream_t stream);
cudaError_t split_rows(const SplitRowsParams& params, cudaStream_t stream);

}  // namespace oscar::kernels
