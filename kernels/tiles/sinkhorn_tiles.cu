// A thread block for each tile; a thread for each row, then for each column, both walked in the order of the CPU
// reference, lib/methods/sinkhorn_code.cpp, whose constants these are.
#include "kernels/common/shared_memory_limit.h"
#include "kernels/tiles/group_codes.cuh"

namespace oscar::kernels {
namespace {

constexpr int kThreads = 128, kMost = 256;
constexpr int kIterations = 16;
constexpr double kLeastDeviation = 1e-3, kMostDeviation = 1e3, kLeastLog = -0.3, kMostLog = 10.0;

struct Scales {
  double log[kMost], factor[kMost], best[kMost], deviation[kMost];
};

struct Shared {
  Scales row, column;
  double least;
  bool better;
};

__device__ double deviation(double sum, double squares, int count) {
  const double n = count;
  return sqrt(fmax(0.0, (squares - sum * sum / n) / (n - 1)));
}

// Deviations of rows and columns of the tile divided by the scales. Ends with a barrier.
__device__ void divide(Shared& s, const float* tile, int rows, int columns) {
  for (int c = threadIdx.x; c < columns; c += kThreads) s.column.factor[c] = exp(-s.column.log[c]);
  for (int r = threadIdx.x; r < rows; r += kThreads) s.row.factor[r] = exp(-s.row.log[r]);
  __syncthreads();
  for (int r = threadIdx.x; r < rows; r += kThreads) {
    double sum = 0.0, squares = 0.0;
    for (int c = 0; c < columns; ++c) {
      const double v = tile[r * columns + c] * s.row.factor[r] * s.column.factor[c];
      sum += v, squares += v * v;
    }
    s.row.deviation[r] = deviation(sum, squares, columns);
  }
  for (int c = threadIdx.x; c < columns; c += kThreads) {
    double sum = 0.0, squares = 0.0;
    for (int r = 0; r < rows; ++r) {
      const double v = tile[r * columns + c] * s.row.factor[r] * s.column.factor[c];
      sum += v, squares += v * v;
    }
    s.column.deviation[c] = deviation(sum, squares, rows);
  }
  __syncthreads();
}

__device__ double spread(const double* values, int n) {
  double low = values[0], high = values[0];
  for (int i = 1; i < n; ++i) low = fmin(low, values[i]), high = fmax(high, values[i]);
  return high / fmax(low, 1e-12);
}

__device__ void accumulate(Scales& s, int n) {
  for (int i = threadIdx.x; i < n; i += kThreads) {
    const double by = log(fmin(fmax(s.deviation[i], kLeastDeviation), kMostDeviation));
    s.log[i] = fmin(fmax(s.log[i] + by, kLeastLog), kMostLog);
  }
}

__device__ void balance(Shared& s, const float* tile, int rows, int columns) {
  for (int i = threadIdx.x; i < kMost; i += kThreads) s.row.log[i] = s.column.log[i] = 0.0;
  if (threadIdx.x == 0) s.least = INFINITY;
  __syncthreads();
  for (int i = 0; i <= kIterations; ++i) {
    divide(s, tile, rows, columns);
    if (threadIdx.x == 0) {
      const double imbalance = spread(s.row.deviation, rows) + spread(s.column.deviation, columns);
      s.better = imbalance < s.least;
      if (s.better) s.least = imbalance;
    }
    __syncthreads();
    if (s.better) {
      for (int r = threadIdx.x; r < rows; r += kThreads) s.row.best[r] = s.row.log[r];
      for (int c = threadIdx.x; c < columns; c += kThreads) s.column.best[c] = s.column.log[c];
    }
    if (i == kIterations) break;
    accumulate(s.column, columns);
    __syncthreads();
    divide(s, tile, rows, columns);
    accumulate(s.row, rows);
    __syncthreads();
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kThreads) sinkhorn_kernel(const __grid_constant__ SinkhornTilesParams p) {
  extern __shared__ __align__(16) std::uint8_t memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  float* tile = reinterpret_cast<float*>(memory + sizeof(Shared));
  const int rows = p.tile, columns = p.head_dim, head = static_cast<int>(blockIdx.y);
  const std::int64_t stride = static_cast<std::int64_t>(p.heads) * columns;
  float* source = p.rows + static_cast<std::int64_t>(blockIdx.x) * rows * stride + head * columns;
  for (int i = threadIdx.x; i < rows * columns; i += kThreads) tile[i] = source[i / columns * stride + i % columns];
  __syncthreads();
  balance(s, tile, rows, columns);
  // The scale of the axis that shares a code range is absorbed in the range's own parameters; the other one is stored.
  const Scales& stored = p.value_side ? s.column : s.row;
  const int lines = p.value_side ? rows : columns, length = p.value_side ? columns : rows;
  const int line_stride = p.value_side ? columns : 1, step = p.value_side ? 1 : columns;
  for (int line = threadIdx.x; line < lines; line += kThreads) {
    float* x = tile + line * line_stride;
    for (int i = 0; i < length; ++i) x[i * step] /= stored_half(static_cast<float>(exp(stored.best[i])));
    code_uniform(ThreadGroup{x, length, step}, p.bits);
    for (int i = 0; i < length; ++i) x[i * step] *= stored_half(static_cast<float>(exp(stored.best[i])));
  }
  __syncthreads();
  for (int i = threadIdx.x; i < rows * columns; i += kThreads) source[i / columns * stride + i % columns] = tile[i];
}

}  // namespace

cudaError_t sinkhorn_tiles(const SinkhornTilesParams& p, cudaStream_t stream) {
  if (p.heads < 1 || p.tile < 2 || p.tile > kMost || p.head_dim < 2 || p.head_dim > kMost || p.tokens % p.tile != 0) {
    return cudaErrorInvalidValue;
  }
  if (p.tokens == 0) return cudaSuccess;
  const int bytes = static_cast<int>(sizeof(Shared)) + 4 * p.tile * p.head_dim;
  const cudaError_t error = allow_shared_memory<sinkhorn_kernel>(bytes);
  if (error != cudaSuccess) return error;
  const dim3 grid(static_cast<unsigned>(p.tokens / p.tile), static_cast<unsigned>(p.heads));
  sinkhorn_kernel<<<grid, kThreads, static_cast<std::size_t>(bytes), stream>>>(p);
  return cudaGetLastError();
}

}  // namespace oscar::kernels
