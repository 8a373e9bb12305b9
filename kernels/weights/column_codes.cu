// A block builds a transposed tile of the weight in shared memory, so that its rows are written in full cache lines. A
// thread reads one word, or several of one row of words, and neighbors read neighboring words. An AWQ word has eight
// rows, and a thread makes them for eight columns. A GPTQ word has columns of one row, and a thread makes 32 columns.
#include "kernels/weights/column_codes.h"

#include "kernels/weights/elements.cuh"

namespace oscar::kernels {
namespace {

constexpr int kTileRows = 128, kTileColumns = 64, kChunk = 8;
constexpr int kAwqRows = 8;             // rows per word
constexpr int kGptqThreadColumns = 32;  // columns of one row

constexpr int bits_of(ColumnCode code) { return code == ColumnCode::kGptq8 ? 8 : 4; }
constexpr int threads_of(ColumnCode code) {
  return kTileRows * kTileColumns / (code == ColumnCode::kAwq ? kAwqRows * kChunk : kGptqThreadColumns);
}

// Bit position of the code of row n in a word that is packed along N.
template <ColumnCode kCode>
__device__ __forceinline__ int shift_of(int n) {
  if constexpr (kCode == ColumnCode::kAwq) return (n % 8 / 2 + n % 2 * 4) * 4;
  return n % (32 / bits_of(kCode)) * bits_of(kCode);
}

// 16-byte pieces are permuted within a row, so that threads that write the same columns of different rows use different
// banks: eight consecutive rows for GPTQ, every eighth row for AWQ.
template <class T, ColumnCode kCode>
struct Tile {
  static constexpr int kPiece = 16 / sizeof(T), kPieces = kTileColumns / kPiece;
  uint4 pieces[kTileRows * kPieces];

  __device__ __forceinline__ uint4* piece(int row, int index) {
    const int by = (kCode == ColumnCode::kAwq ? row / kAwqRows : row) % 8;
    return pieces + row * kPieces + (index ^ by);
  }
  __device__ __forceinline__ T* at(int row, int column) {
    return reinterpret_cast<T*>(piece(row, column / kPiece)) + column % kPiece;
  }
  // Stores columns column .. column + 7; column is a multiple of 8.
  __device__ __forceinline__ void store(int row, int column, const float (&values)[kChunk]) {
    alignas(16) T elements[kChunk];
    store_eight(elements, values);
#pragma unroll
    for (int i = 0; i < kChunk / kPiece; ++i) {
      *piece(row, column / kPiece + i) = reinterpret_cast<const uint4*>(elements)[i];
    }
  }
};

// Scale and zero point of one row in the group that was read last.
template <ColumnCode kCode>
struct RowGroup {
  int group = -1, end = 0;  // end: first column after the group, if columns are in order
  float scale = 0.0f, bias = 0.0f;

  __device__ __forceinline__ void read(const ColumnCodesParams& p, int n, std::uint32_t zeros) {
    constexpr std::uint32_t kMask = (1u << bits_of(kCode)) - 1u;
    bias = kWhole + static_cast<float>(static_cast<int>(zeros >> shift_of<kCode>(n) & kMask) + p.zero_offset);
    scale = scale_value(p.scale, static_cast<std::int64_t>(group) * p.rows + n, p.scale_type);
  }

  // True if column k is in another group than the last one; then moves to that group.
  __device__ __forceinline__ bool moves_to(const ColumnCodesParams& p, int k) {
    if (p.groups != nullptr) {
      const int next = p.groups[k];
      if (next == group) return false;
      group = next;
      return true;
    }
    if (k < end) return false;
    group = k / p.block_columns;
    end = (group + 1) * p.block_columns;
    return true;
  }

  // The word of zero points that holds row n.
  __device__ __forceinline__ std::uint32_t zeros(const ColumnCodesParams& p, int n) const {
    constexpr int kPerWord = 32 / bits_of(kCode);
    return p.zeros[static_cast<std::int64_t>(group) * ((p.rows + kPerWord - 1) / kPerWord) + n / kPerWord];
  }

  // (code - zero) scale. The code is the last bits of a float of 2^23, which saves the conversion; the difference of
  // two such integers is exact.
  __device__ __forceinline__ float value(std::uint32_t code) const {
    return (__uint_as_float(__float_as_uint(kWhole) | code) - bias) * scale;
  }

  static constexpr float kWhole = 8388608.0f;  // 2^23
};

// True if eight columns from a multiple of 8 on are in one group.
__device__ __forceinline__ bool chunks_are_whole(const ColumnCodesParams& p) {
  return p.groups == nullptr && p.block_columns % kChunk == 0;
}

template <class T, ColumnCode kCode>
__device__ void fill_awq(const ColumnCodesParams& p, Tile<T, kCode>& tile, int first_row, int first_column) {
  constexpr int kWords = kTileRows / kAwqRows;
  const int row = static_cast<int>(threadIdx.x) % kWords * kAwqRows, n = first_row + row;
  const int column = static_cast<int>(threadIdx.x) / kWords * kChunk, k = first_column + column;
  if (n >= p.rows || k >= p.columns) return;
  const std::int64_t words = (p.rows + kAwqRows - 1) / kAwqRows;
  std::uint32_t codes[kChunk];
#pragma unroll
  for (int j = 0; j < kChunk; ++j) codes[j] = k + j < p.columns ? p.codes[(k + j) * words + n / kAwqRows] : 0u;
  RowGroup<kCode> group;
  if (chunks_are_whole(p)) {
    group.moves_to(p, k);
    const std::uint32_t zeros = group.zeros(p, n);
#pragma unroll
    for (int r = 0; r < kAwqRows; ++r) {
      if (n + r >= p.rows) continue;
      group.read(p, n + r, zeros);
      float values[kChunk];
#pragma unroll
      for (int j = 0; j < kChunk; ++j) values[j] = group.value(codes[j] >> shift_of<kCode>(r) & 15u);
      tile.store(row + r, column, values);
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    if (k + j >= p.columns) continue;
    group.moves_to(p, k + j);
    const std::uint32_t zeros = group.zeros(p, n);
    for (int r = 0; r < kAwqRows && n + r < p.rows; ++r) {
      group.read(p, n + r, zeros);
      *tile.at(row + r, column + j) = rounded<T>(group.value(codes[j] >> shift_of<kCode>(r) & 15u));
    }
  }
}

template <class T, ColumnCode kCode>
__device__ void fill_gptq(const ColumnCodesParams& p, Tile<T, kCode>& tile, int first_row, int first_column) {
  constexpr int kBits = bits_of(kCode), kPerWord = 32 / kBits, kWords = kGptqThreadColumns / kPerWord;
  const int row = static_cast<int>(threadIdx.x) % kTileRows, n = first_row + row;
  const int column = static_cast<int>(threadIdx.x) / kTileRows * kGptqThreadColumns;
  if (n >= p.rows) return;
  std::uint32_t words[kWords];  // all are requested before one is used
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    const int k = first_column + column + w * kPerWord;
    words[w] = k < p.columns ? p.codes[static_cast<std::int64_t>(k / kPerWord) * p.rows + n] : 0u;
  }
  const bool whole = chunks_are_whole(p);
  RowGroup<kCode> group;
#pragma unroll
  for (int c = 0; c < kGptqThreadColumns; c += kChunk) {
    const int k = first_column + column + c;
    if (k >= p.columns) break;
    if (whole && group.moves_to(p, k)) group.read(p, n, group.zeros(p, n));
    float values[kChunk];
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      if (!whole && k + j < p.columns && group.moves_to(p, k + j)) group.read(p, n, group.zeros(p, n));
      values[j] = group.value(words[(c + j) / kPerWord] >> ((c + j) % kPerWord * kBits) & ((1u << kBits) - 1u));
    }
    tile.store(row, column + c, values);
  }
}

template <class T, ColumnCode kCode>
__device__ void write_tile(const ColumnCodesParams& p, Tile<T, kCode>& tile, int first_row, int first_column) {
  T* weight = static_cast<T*>(p.weight);
  constexpr int kVector = Tile<T, kCode>::kPiece;
  const bool whole = p.columns % kVector == 0;  // true if rows of the weight begin at multiples of 16 bytes
  const int step = whole ? kVector : 1, per_row = kTileColumns / step;
  for (int index = static_cast<int>(threadIdx.x); index < kTileRows * per_row; index += threads_of(kCode)) {
    const int row = index / per_row, column = index % per_row * step;
    if (first_row + row >= p.rows || first_column + column >= p.columns) continue;
    T* to = weight + static_cast<std::int64_t>(first_row + row) * p.columns + first_column + column;
    if (whole) {
      *reinterpret_cast<uint4*>(to) = *tile.piece(row, column / kVector);
    } else {
      *to = *tile.at(row, column);
    }
  }
}

// Grid: (tiles of columns, tiles of rows).
template <class T, ColumnCode kCode>
__global__ void __launch_bounds__(threads_of(kCode)) column_codes_kernel(const __grid_constant__ ColumnCodesParams p) {
  __shared__ Tile<T, kCode> tile;
  const int first_row = static_cast<int>(blockIdx.y) * kTileRows;
  const int first_column = static_cast<int>(blockIdx.x) * kTileColumns;
  if constexpr (kCode == ColumnCode::kAwq) {
    fill_awq(p, tile, first_row, first_column);
  } else {
    fill_gptq(p, tile, first_row, first_column);
  }
  __syncthreads();
  write_tile(p, tile, first_row, first_column);
}

template <class T, ColumnCode kCode>
cudaError_t launch_code(const ColumnCodesParams& p, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((p.columns + kTileColumns - 1) / kTileColumns),
                  static_cast<unsigned>((p.rows + kTileRows - 1) / kTileRows));
  column_codes_kernel<T, kCode><<<grid, threads_of(kCode), 0, stream>>>(p);
  return cudaGetLastError();
}

template <class T>
cudaError_t launch(const ColumnCodesParams& p, cudaStream_t stream) {
  switch (p.code) {
    case ColumnCode::kAwq:
      return launch_code<T, ColumnCode::kAwq>(p, stream);
    case ColumnCode::kGptq4:
      return launch_code<T, ColumnCode::kGptq4>(p, stream);
    case ColumnCode::kGptq8:
      return launch_code<T, ColumnCode::kGptq8>(p, stream);
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
