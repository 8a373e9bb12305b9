// Second moments of FP32 rows whose FP32 sums have one order. Products of a run of rows are added one row after
// another, as in a matrix product on the FP32 units, so both give the same bits. Only half of the products are
// computed: X^T X is symmetric, also in its bits. CPU reference: gram_of() of lib/collect/accumulator.cpp. Raw
// pointers, no LibTorch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace oscar::kernels {

// M matrices of N rows, D head_dim. Device pointers.
struct OrderedGramParams {
  const float* x = nullptr;    // [M, N, D], 16-byte aligned
  double* sum = nullptr;       // [M, D, D] += the FP32 products of `block` rows at a time, added in FP64
  float* workspace = nullptr;  // ordered_gram_workspace_bytes(...)
  std::int64_t rows = 0;       // N
  std::int32_t matrices = 0, head_dim = 0, block = 256;
};

// A few long products: [M, N, D] -> [M, D, D] FP32, all N rows one after another, for each run of rows.
struct LongGramParams {
  static constexpr int kMostRuns = 8;
  const float* x[kMostRuns] = {};     // [M, N, D] per run
  std::int64_t rows[kMostRuns] = {};  // N
  float* products = nullptr;          // [runs, M, D, D]
  std::int32_t runs = 0, matrices = 0, head_dim = 0;
};

bool ordered_gram_built(int head_dim);  // 64 and 128
std::size_t ordered_gram_workspace_bytes(std::int64_t rows, int matrices, int head_dim, int block);
// cudaErrorInvalidValue for a head_dim that is not built. The functions allocate nothing and do not synchronize. Equal
// inputs give equal bits, on any GPU.
cudaError_t ordered_gram(const OrderedGramParams& params, cudaStream_t stream);
cudaError_t long_gram(const LongGramParams& params, cudaStream_t stream);

}  // namespace oscar::kernels
