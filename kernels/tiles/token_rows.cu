// One block per Hadamard block; one warp per token norm.
#include "kernels/tiles/token_rows.h"

#include <cmath>
#include <cstddef>

namespace oscar::kernels {
namespace {

constexpr int kMostOrder = 8192, kMostThreads = 256, kNormThreads = 128;

__global__ void __launch_bounds__(kMostThreads) hadamard_kernel(float* data, int order, float scale) {
  extern __shared__ float x[];
  float* row = data + blockIdx.x * static_cast<std::int64_t>(order);
  for (int i = threadIdx.x; i < order; i += blockDim.x) x[i] = row[i];
  for (int half = 1; half < order; half *= 2) {
    __syncthreads();
    for (int pair = threadIdx.x; pair < order / 2; pair += blockDim.x) {
      const int i = pair / half * 2 * half + pair % half;
      const float a = x[i], b = x[i + half];
      x[i] = a + b, x[i + half] = a - b;
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < order; i += blockDim.x) row[i] = x[i] * scale;
}

// Squares of floats are exact in FP64, so only their sum rounds, in the order of the CPU's loop.
__global__ void __launch_bounds__(kNormThreads)
    norm_kernel(const float* rows, std::int64_t tokens, std::int64_t width, float* norms) {
  const std::int64_t token = blockIdx.x * static_cast<std::int64_t>(kNormThreads / 32) + threadIdx.x / 32;
  if (token >= tokens) return;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const float* row = rows + token * width;
  double sum = 0.0;
  for (std::int64_t first = 0; first < width; first += 32) {
    const double x = first + lane < width ? static_cast<double>(row[first + lane]) : 0.0;
    const double square = x * x;
#pragma unroll
    for (int i = 0; i < 32; ++i) sum += __shfl_sync(0xffffffffu, square, i);  // +0 beyond the row
  }
  if (lane == 0) norms[token] = static_cast<float>(sqrt(fmax(sum, 1e-8)));
}

}  // namespace

cudaError_t hadamard_rows(float* data, std::int64_t blocks, std::int32_t order, cudaStream_t stream) {
  if (order < 1 || order > kMostOrder || (order & (order - 1)) != 0) return cudaErrorInvalidValue;
  if (blocks == 0) return cudaSuccess;
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(order)));
  const int threads = order / 2 < kMostThreads ? (order / 2 < 32 ? 32 : order / 2) : kMostThreads;
  hadamard_kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads),
                    sizeof(float) * static_cast<std::size_t>(order), stream>>>(data, order, scale);
  return cudaGetLastError();
}

cudaError_t token_norms(const float* rows, std::int64_t tokens, std::int64_t width, float* norms, cudaStream_t stream) {
  if (tokens == 0) return cudaSuccess;
  constexpr int kTokens = kNormThreads / 32;
  norm_kernel<<<static_cast<unsigned>((tokens + kTokens - 1) / kTokens), kNormThreads, 0, stream>>>(rows, tokens, width,
                                                                                                    norms);
  return cudaGetLastError();
}

}  // namespace oscar::kernels
