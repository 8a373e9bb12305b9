// A warp computes one tile of a product, on or above the diagonal. Asynchronous copies bring the rows to shared memory,
// one chunk ahead.
#include "kernels/gram/ordered_gram.h"

#include <algorithm>

#include "kernels/common/launch_kernel.cuh"

namespace oscar::kernels {
namespace {

constexpr int kChunk = 32, kStages = 3, kLongStages = 4;  // rows per chunk; chunks in shared memory
constexpr int kRows = 32;                                 // rows per tile

// Tiles of kRows x kColumns that contain a part of the upper triangle, row by row.
template <int D, int kColumns>
struct Tiles {
  __host__ __device__ static constexpr int first(int row) { return row * kRows / kColumns; }
  __host__ __device__ static constexpr int count() {
    int n = 0;
    for (int row = 0; row < D / kRows; ++row) n += D / kColumns - first(row);
    return n;
  }
  int row = 0, column = 0;  // of the tile's first element

  __device__ __forceinline__ explicit Tiles(int tile) {
    while (tile >= D / kColumns - first(row)) tile -= D / kColumns - first(row), ++row;
    column = (first(row) + tile) * kColumns, row *= kRows;
  }
};

__device__ __forceinline__ void copy16(float* to, const float* from, bool live) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(to))),
      "l"(from), "r"(live ? 16 : 0)
      : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kLeft>
__device__ __forceinline__ void wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// Starts copies of the columns [0, kColumns) of a chunk of rows, with zeros after the last row.
template <int D, int kColumns, int kThreads>
__device__ __forceinline__ void copy_rows(float (*to)[kColumns], const float* from, std::int64_t row,
                                          std::int64_t end) {
  for (int i = threadIdx.x; i < kChunk * kColumns / 4; i += kThreads) {
    const int r = i / (kColumns / 4), c = i % (kColumns / 4) * 4;
    const bool live = row + r < end;
    copy16(&to[r][c], from + (live ? row + r : 0) * D + c, live);
  }
}

__device__ __forceinline__ void load4(float* to, const float* from) {
  *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(from);
}

// A lane's part of a tile: runs of four rows, 16 apart, and kRuns runs of four columns, 32 apart.
template <int kRuns, int kRowsOfLane = 8>
struct Part {
  float sum[kRowsOfLane][4 * kRuns] = {};
  int row, column;

  __device__ __forceinline__ explicit Part(int first = 0)
      : row(first + threadIdx.x % 32 / 8 * 4), column(threadIdx.x % 8 * 4) {}
  // left, right: one row of x, from the tile's first row and first column on.
  __device__ __forceinline__ void add(const float* left, const float* right) {
    float a[kRowsOfLane], b[4 * kRuns];
#pragma unroll
    for (int i = 0; i < kRowsOfLane; i += 4) load4(a + i, left + 4 * i + row);
#pragma unroll
    for (int run = 0; run < kRuns; ++run) load4(b + 4 * run, right + 32 * run + column);
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i)
#pragma unroll
      for (int j = 0; j < 4 * kRuns; ++j) sum[i][j] = __fmaf_rn(a[i], b[j], sum[i][j]);
  }
  __device__ __forceinline__ int row_of(int i) const { return row + i / 4 * 16 + i % 4; }
};

constexpr int kColumns = 64;  // columns per tile of block_products

// A block of threads takes a run of rows of one matrix. Zero rows after them change no bit.
template <int D>
__global__ void __launch_bounds__(32 * Tiles<D, kColumns>::count(), 2)
    block_products(const __grid_constant__ OrderedGramParams p) {
  constexpr int kTiles = Tiles<D, kColumns>::count(), kThreads = 32 * kTiles;
  __shared__ __align__(16) float rows[kStages][kChunk][D];
  const Tiles<D, kColumns> tile(threadIdx.x / 32);
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * p.block, end = min(begin + p.block, p.rows);
  const float* x = p.x + blockIdx.y * p.rows * D;
  const int chunks = static_cast<int>((end - begin + kChunk - 1) / kChunk);
  Part<kColumns / 32> part;
  const auto copy = [&](int chunk) {
    if (chunk < chunks) copy_rows<D, D, kThreads>(rows[chunk % kStages], x, begin + chunk * kChunk, end);
    commit();
  };
  for (int chunk = 0; chunk < kStages - 1; ++chunk) copy(chunk);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    wait<kStages - 2>();
    __syncthreads();
    copy(chunk + kStages - 1);
    const float(*now)[D] = rows[chunk % kStages];
#pragma unroll 8
    for (int k = 0; k < kChunk; ++k) part.add(&now[k][tile.row], &now[k][tile.column]);
  }
  float* out =
      p.workspace + ((static_cast<std::int64_t>(blockIdx.y) * gridDim.x + blockIdx.x) * kTiles + threadIdx.x / 32) *
                        (kRows * kColumns);
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int run = 0; run < kColumns / 32; ++run) {
      load4(out + part.row_of(i) * kColumns + 32 * run + part.column, &part.sum[i][4 * run]);
    }
}

// FP64 sums of the blocks in the order of ATen's reduction, so the bits are equal: from 64 blocks on in four parts;
// each part (and fewer than 64 blocks) in four interleaved sums.
template <int D>
__global__ void __launch_bounds__(256) add_blocks(const __grid_constant__ OrderedGramParams p) {
  constexpr int kElements = Tiles<D, kColumns>::count() * kRows * kColumns;
  const int i = static_cast<int>(blockIdx.x * 256 + threadIdx.x), at = i % (kRows * kColumns);
  const Tiles<D, kColumns> tile(i / (kRows * kColumns));
  const int row = tile.row + at / kColumns, column = tile.column + at % kColumns;
  if (column < row) return;
  const int blocks = static_cast<int>((p.rows + p.block - 1) / p.block), full = static_cast<int>(p.rows / p.block);
  const float* from = p.workspace + static_cast<std::int64_t>(blockIdx.y) * blocks * kElements + i;
  const auto product = [&](int block) {
    return static_cast<double>(from[static_cast<std::int64_t>(block) * kElements]);
  };
  const int parts = full >= 64 ? 4 : 1;
  double sum[4] = {};
#pragma unroll
  for (int y = 0; y < 4; ++y) {
    if (y >= parts) break;
    double turn[4] = {};
    int block = y;
    for (; block + 3 * parts < full; block += 4 * parts) {
#pragma unroll
      for (int n = 0; n < 4; ++n) turn[n] += product(block + n * parts);
    }
#pragma unroll
    for (int n = 0; n < 4; ++n, block += parts) {
      if (block < full) turn[n] += product(block);
    }
    sum[y] = ((turn[0] + turn[1]) + turn[2]) + turn[3];
  }
  double total = parts == 4 ? (sum[0] + sum[2]) + (sum[1] + sum[3]) : sum[0];
  if (blocks > full) total += product(full);
  double* out = p.sum + static_cast<std::int64_t>(blockIdx.y) * D * D;
  out[row * D + column] += total;
  if (row != column) out[column * D + row] += total;
}

constexpr int kLongThreads = 64, kLaneRows = 8 / (kLongThreads / 32);  // threads per tile; rows per lane

// Two warps per tile, for few matrices with many rows.
template <int D>
__global__ void __launch_bounds__(kLongThreads) long_products(const __grid_constant__ LongGramParams p) {
  __shared__ __align__(16) float left[kLongStages][kChunk][kRows], right[kLongStages][kChunk][kRows];
  const Tiles<D, kRows> tile(blockIdx.x);
  const std::int64_t rows = p.rows[blockIdx.z];
  const float* x = p.x[blockIdx.z] + blockIdx.y * rows * D;
  const int chunks = static_cast<int>((rows + kChunk - 1) / kChunk);
  const auto copy = [&](int chunk) {
    const std::int64_t row = static_cast<std::int64_t>(chunk) * kChunk;
    if (chunk < chunks) {
      copy_rows<D, kRows, kLongThreads>(left[chunk % kLongStages], x + tile.row, row, rows);
      copy_rows<D, kRows, kLongThreads>(right[chunk % kLongStages], x + tile.column, row, rows);
    }
    commit();
  };
  Part<1, kLaneRows> part(threadIdx.x / 32 * 4 * kLaneRows);
  for (int chunk = 0; chunk < kLongStages - 1; ++chunk) copy(chunk);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    wait<kLongStages - 2>();
    __syncthreads();
    copy(chunk + kLongStages - 1);
#pragma unroll
    for (int k = 0; k < kChunk; ++k) part.add(left[chunk % kLongStages][k], right[chunk % kLongStages][k]);
  }
  float* out = p.products + (static_cast<std::int64_t>(blockIdx.z) * gridDim.y + blockIdx.y) * D * D;
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int row = tile.row + part.row_of(i), column = tile.column + part.column + j;
      out[row * D + column] = part.sum[i][j];
      if (tile.row != tile.column) out[column * D + row] = part.sum[i][j];
    }
}

template <int D>
cudaError_t launch(const OrderedGramParams& p, cudaStream_t stream) {
  constexpr int kTiles = Tiles<D, kColumns>::count();
  const cudaError_t error =
      launch_kernel<block_products<D>>(grid_of(blocks_of(p.rows, p.block), p.matrices), 32 * kTiles, stream, p);
  if (error != cudaSuccess) return error;
  return launch_kernel<add_blocks<D>>(grid_of(kTiles * kRows * kColumns / 256, p.matrices), 256, stream, p);
}

template <int D>
cudaError_t launch(const LongGramParams& p, cudaStream_t stream) {
  return launch_kernel<long_products<D>>(grid_of(Tiles<D, kRows>::count(), p.matrices, p.runs), kLongThreads, stream,
                                         p);
}

template <typename Params>
cudaError_t launch_built(const Params& p, cudaStream_t stream) {
  if (p.matrices < 1) return cudaErrorInvalidValue;
  return for_head_dim<64, 128>(p.head_dim, [&]<int D>() { return launch<D>(p, stream); });
}

}  // namespace

bool ordered_gram_built(int head_dim) { return head_dim == 64 || head_dim == 128; }

std::size_t ordered_gram_workspace_bytes(std::int64_t rows, int matrices, int head_dim, int block) {
  const auto blocks = static_cast<std::size_t>((rows + block - 1) / block);
  return sizeof(float) * blocks * static_cast<std::size_t>(matrices) * static_cast<std::size_t>(head_dim * head_dim);
}

cudaError_t ordered_gram(const OrderedGramParams& p, cudaStream_t stream) {
  if (p.block < kChunk || p.block % kChunk != 0) return cudaErrorInvalidValue;
  return p.rows == 0 ? cudaSuccess : launch_built(p, stream);
}

cudaError_t long_gram(const LongGramParams& p, cudaStream_t stream) { return launch_built(p, stream); }

}  // namespace oscar::kernels
