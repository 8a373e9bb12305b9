// A block has 32 rows, as two BF16 terms in shared memory, and 64 columns of the product at a time. Its warps have 16
// rows and 16 columns. Few rows are shared by eight blocks.
#include "kernels/latent/latent_rows.h"

#include "kernels/common/launch_kernel.cuh"
#include "kernels/decode/mma.cuh"

namespace oscar::kernels {
namespace {

constexpr int kRows = 32, kColumns = 64, kThreads = 256;
constexpr int kTiles = kLatentChannels / 16, kGroups = kLatentChannels / kColumns, kWords = kLatentChannels / 2;
constexpr int kRowWords = kWords + 4;  // no bank conflicts

struct Shared {
  std::uint32_t term[2][kRows][kRowWords];  // pairs of channels
  float half[kColumns / 16][2][4][32];      // sums of the second half of the channels
};

// Pairs of channels minus the mean.
__device__ __forceinline__ void load_rows(const LatentRowsParams& p, Shared& s, int first) {
  for (int e = static_cast<int>(threadIdx.x); e < kRows * kWords; e += kThreads) {
    const int r = e / kWords, i = e % kWords;
    std::uint32_t pair = 0, rest = 0;
    if (first + r < p.rows) {
      pair = *reinterpret_cast<const std::uint32_t*>(p.x + (first + r) * p.x_stride + 2 * i);
      if (p.before != nullptr) {
        const float low = low_bf16(pair) - p.before[2 * i], high = high_bf16(pair) - p.before[2 * i + 1];
        pair = pack_bf16(low, high);
        rest = pack_bf16(low - low_bf16(pair), high - high_bf16(pair));
      }
    }
    s.term[0][r][i] = pair;
    if (p.before != nullptr) s.term[1][r][i] = rest;
  }
}

__device__ __forceinline__ uint4 row_operand(const std::uint32_t (*term)[kRowWords], int row_tile, int step, int lane) {
  const int g = lane / 4, at = 8 * step + lane % 4;
  const std::uint32_t *upper = term[16 * row_tile + g], *lower = term[16 * row_tile + g + 8];
  return make_uint4(upper[at], lower[at], upper[at + 4], lower[at + 4]);
}

// 16 columns of 16 rows: two tiles of eight columns. Adds up channels from step `begin` of 16 on, `steps` of them.
__device__ __forceinline__ void multiply(const LatentRowsParams& p, const Shared& s, int row_tile, int column_tile,
                                         int begin, int steps, int lane, float (&sum)[2][4]) {
  const uint4* matrix = reinterpret_cast<const uint4*>(p.matrix) + column_tile * 32 + lane;
#pragma unroll 8
  for (int k = begin; k < begin + steps; ++k) {
    const uint4 most = __ldg(matrix + k * kTiles * 32), rest = __ldg(matrix + (kTiles + k) * kTiles * 32);
    const uint4 x = row_operand(s.term[0], row_tile, k, lane);
    mma_bf16(sum[0], x, most.x, most.y);
    mma_bf16(sum[1], x, most.z, most.w);
    mma_bf16(sum[0], x, rest.x, rest.y);
    mma_bf16(sum[1], x, rest.z, rest.w);
    if (p.before == nullptr) continue;
    const uint4 y = row_operand(s.term[1], row_tile, k, lane);
    mma_bf16(sum[0], y, most.x, most.y);
    mma_bf16(sum[1], y, most.z, most.w);
  }
}

// The window page of the newest token of a sequence; null: it has none.
__device__ __forceinline__ std::uint8_t* window_of(const LatentRowsParams& p, int row, int& slot) {
  const int position = p.lengths[row] - 1;
  if (position < 0) return nullptr;
  const int place = position < p.sink ? position : position % (kPageTokens * p.ring_pages);
  const int column = place / kPageTokens + (position < p.sink ? 0 : p.sink_pages);
  slot = place % kPageTokens;
  const std::int64_t page = p.window_table[row * (p.sink_pages + p.ring_pages) + column];
  return p.windows + page * kLatentWindowBytes;
}

__device__ __forceinline__ void store(const LatentRowsParams& p, int row, int channel, float first, float second) {
  if (row >= p.rows) return;
  if (p.after != nullptr) first += p.after[channel], second += p.after[channel + 1];
  const std::uint32_t pair = pack_bf16(first, second);
  if (p.y != nullptr) {
    *reinterpret_cast<std::uint32_t*>(p.y + row * p.y_stride + channel) = pair;
    return;
  }
  int slot = 0;
  std::uint8_t* page = window_of(p, row, slot);
  if (page != nullptr) *reinterpret_cast<std::uint32_t*>(page + latent_window_byte(slot, channel)) = pair;
}

__device__ __forceinline__ void copy_rope(const LatentRowsParams& p, int first) {
  for (int e = static_cast<int>(threadIdx.x); e < kRows * kRopeChannels / 2; e += kThreads) {
    const int row = first + e / (kRopeChannels / 2), channel = e % (kRopeChannels / 2) * 2;
    if (row >= p.rows) continue;
    int slot = 0;
    std::uint8_t* page = window_of(p, row, slot);
    if (page == nullptr) continue;
    *reinterpret_cast<std::uint32_t*>(page + latent_window_byte(slot, kLatentChannels + channel)) =
        *reinterpret_cast<const std::uint32_t*>(p.pe + row * p.pe_stride + channel);
  }
}

__global__ void __launch_bounds__(kThreads, 2) rows_kernel(const __grid_constant__ LatentRowsParams p) {
  extern __shared__ __align__(128) std::uint8_t memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  let_next_start();
  const int first = static_cast<int>(blockIdx.x) * kRows, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const bool halves = p.rows <= 16 && gridDim.y == kGroups;  // two warps share the channels of one tile of rows
  load_rows(p, s, first);
  __syncthreads();
  if (p.y == nullptr && blockIdx.y == 0) copy_rope(p, first);
  for (int group = blockIdx.y; group < kGroups; group += static_cast<int>(gridDim.y)) {
    const int row_tile = halves ? 0 : warp % 2, column_tile = group * (kColumns / 16) + warp / 2;
    float sum[2][4] = {};
    multiply(p, s, row_tile, column_tile, halves ? warp % 2 * kTiles / 2 : 0, halves ? kTiles / 2 : kTiles, lane, sum);
    if (halves && warp % 2 == 1) {
#pragma unroll
      for (int i = 0; i < 8; ++i) s.half[warp / 2][i / 4][i % 4][lane] = sum[i / 4][i % 4];
    }
    if (halves) __syncthreads();
    if (halves && warp % 2 == 1) continue;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) sum[i][k] += halves ? s.half[warp / 2][i][k][lane] : 0.0f;
      const int row = first + 16 * row_tile + lane / 4, channel = 16 * column_tile + 8 * i + lane % 4 * 2;
      store(p, row, channel, sum[i][0], sum[i][1]);
      store(p, row + 8, channel, sum[i][2], sum[i][3]);
    }
  }
}

}  // namespace

cudaError_t latent_rows(const LatentRowsParams& p, cudaStream_t stream) {
  if (p.x_stride % 8 != 0 || (p.y != nullptr && p.y_stride % 2 != 0) ||
      (p.y == nullptr && (p.pe == nullptr || p.pe_stride % 2 != 0 || p.ring_pages < 1))) {
    return cudaErrorInvalidValue;
  }
  if (p.rows == 0) return cudaSuccess;
  // Blocks that share rows read them while others write, so rows that stay in place have one block.
  const bool shared = p.y == nullptr || (p.rows <= 16 * kRows && p.y != p.x);
  return launch_with<rows_kernel, Shared>(grid_of(blocks_of(p.rows, kRows), shared ? kGroups : 1), kThreads, stream, p);
}

}  // namespace oscar::kernels
