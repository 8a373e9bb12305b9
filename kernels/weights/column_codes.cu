// A thread for one row of the weight and 32 of its columns: neighbours read neighbouring words, or the same one, and
// scale and zero point stay in registers as long as the group lasts. Results are turned in shared memory, so that rows
// are written in whole sectors.
#include "kernels/weights/column_codes.h"

#include "kernels/weights/elements.cuh"

namespace oscar::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kTileRows = 128, kTileColumns = 64, kChunk = 8;
constexpr int kThreadColumns = kTileColumns * kTileRows / kThreads;

constexpr int bits_of(ColumnCode code) { return code == ColumnCode::kGptq8 ? 8 : 4; }

// Where the code of row n stands in a word that is packed along N.
template <ColumnCode kCode>
__device__ __forceinline__ int shift_of(int n) {
  if constexpr (kCode == ColumnCode::kAwq) return (n % 8 / 2 + n % 2 * 4) * 4;
  return n % (32 / bits_of(kCode)) * bits_of(kCode);
}

// Codes of row n, columns k .. k + 7; those behind the last column are 0.
template <ColumnCode kCode>
__device__ __forceinline__ void read_codes(const ColumnCodesParams& p, int n, int k, std::uint32_t (&codes)[kChunk]) {
  if constexpr (kCode == ColumnCode::kAwq) {
    const std::int64_t words = (p.rows + 7) / 8;
    const int shift = shift_of<kCode>(n);
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      codes[j] = k + j < p.columns ? p.codes[(k + j) * words + n / 8] >> shift & 15u : 0u;
    }
  } else {
    constexpr int kBits = bits_of(kCode), kPerWord = 32 / kBits;
#pragma unroll
    for (int w = 0; w < kChunk / kPerWord; ++w) {
      const std::int64_t row = k / kPerWord + w;
      const std::uint32_t word = k + w * kPerWord < p.columns ? p.codes[row * p.rows + n] : 0u;
#pragma unroll
      for (int j = 0; j < kPerWord; ++j) codes[w * kPerWord + j] = word >> (j * kBits) & ((1u << kBits) - 1u);
    }
  }
}

// Scale and zero point of a row, of the group that was read last.
template <ColumnCode kCode>
struct RowGroup {
  int group = -1, end = 0;  // end: its first column behind it, where columns are in order
  float scale = 0.0f, zero = 0.0f;

  __device__ __forceinline__ void read(const ColumnCodesParams& p, int n) {
    constexpr int kPerWord = 32 / bits_of(kCode);
    constexpr std::uint32_t kMask = (1u << bits_of(kCode)) - 1u;
    const std::int64_t words = (p.rows + kPerWord - 1) / kPerWord;
    const std::uint32_t word = p.zeros[group * words + n / kPerWord];
    zero = static_cast<float>(static_cast<int>(word >> shift_of<kCode>(n) & kMask) + p.zero_offset);
    scale = scale_value(p.scale, static_cast<std::int64_t>(group) * p.rows + n, p.scale_type);
  }

  __device__ __forceinline__ void at(const ColumnCodesParams& p, int n, int k) {
    if (p.groups != nullptr) {
      const int next = p.groups[k];
      if (next == group) return;
      group = next;
    } else {
      if (k < end) return;
      group = k / p.block_columns;
      end = (group + 1) * p.block_columns;
    }
    read(p, n);
  }
};

template <class T>
using Tile = T[kTileRows][kTileColumns + 16 / sizeof(T)];

template <class T>
__device__ void write_tile(const ColumnCodesParams& p, const Tile<T>& tile, int first_row, int first_column) {
  T* weight = static_cast<T*>(p.weight);
  constexpr int kVector = 16 / sizeof(T);
  const bool whole = p.columns % kVector == 0;  // rows of the weight begin at 16 bytes
  const int step = whole ? kVector : 1, per_row = kTileColumns / step;
  for (int index = static_cast<int>(threadIdx.x); index < kTileRows * per_row; index += kThreads) {
    const int row = index / per_row, column = index % per_row * step;
    if (first_row + row >= p.rows || first_column + column >= p.columns) continue;
    T* to = weight + static_cast<std::int64_t>(first_row + row) * p.columns + first_column + column;
    if (whole) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(&tile[row][column]);
    } else {
      *to = tile[row][column];
    }
  }
}

// Grid: (tiles of columns, tiles of rows).
template <class T, ColumnCode kCode>
__global__ void __launch_bounds__(kThreads) column_codes_kernel(const __grid_constant__ ColumnCodesParams p) {
  __shared__ alignas(16) Tile<T> tile;
  const int first_row = static_cast<int>(blockIdx.y) * kTileRows;
  const int first_column = static_cast<int>(blockIdx.x) * kTileColumns;
  const int in_tile = static_cast<int>(threadIdx.x) % kTileRows, n = first_row + in_tile;
  const int own = static_cast<int>(threadIdx.x) / kTileRows * kThreadColumns;
  if (n < p.rows) {
    RowGroup<kCode> group;
#pragma unroll
    for (int c = 0; c < kThreadColumns; c += kChunk) {
      const int k = first_column + own + c;
      if (k >= p.columns) break;
      std::uint32_t codes[kChunk];
      read_codes<kCode>(p, n, k, codes);
      float values[kChunk];
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        if (k + j < p.columns) group.at(p, n, k + j);
        values[j] = (static_cast<float>(codes[j]) - group.zero) * group.scale;
      }
      store_eight(&tile[in_tile][own + c], values);
    }
  }
  __syncthreads();
  write_tile(p, tile, first_row, first_column);
}

template <class T>
cudaError_t launch(const ColumnCodesParams& p, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((p.columns + kTileColumns - 1) / kTileColumns),
                  static_cast<unsigned>((p.rows + kTileRows - 1) / kTileRows));
  switch (p.code) {
    case ColumnCode::kAwq:
      column_codes_kernel<T, ColumnCode::kAwq><<<grid, kThreads, 0, stream>>>(p);
      return cudaGetLastError();
    case ColumnCode::kGptq4:
      column_codes_kernel<T, ColumnCode::kGptq4><<<grid, kThreads, 0, stream>>>(p);
      return cudaGetLastError();
    case ColumnCode::kGptq8:
      column_codes_kernel<T, ColumnCode::kGptq8><<<grid, kThreads, 0, stream>>>(p);
      return cudaGetLastError();
  }
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t dequantize_column_codes(const ColumnCodesParams& p, cudaStream_t stream) {
  if (p.rows < 0 || p.columns < 1 || p.rows > 65535 * kTileRows) return cudaErrorInvalidValue;
  if (p.groups == nullptr && p.block_columns < 1) return cudaErrorInvalidValue;
  if (!aligned(p.weight, 16) || p.scale_type == ScaleType::kE4M3 || p.scale_type == ScaleType::kE8M0) {
    return cudaErrorInvalidValue;
  }
  if (p.rows == 0) return cudaSuccess;
  return by_weight_type(p.weight_type, [&](auto of) { return launch<decltype(of)>(p, stream); });
}

}  // namespace oscar::kernels
