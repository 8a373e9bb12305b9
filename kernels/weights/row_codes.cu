// A thread handles eight columns of four rows; codes of all four are requested before the first is used. If eight
// columns share no scale, or cannot be read and written at once, it handles them one by one.
#include "kernels/weights/row_codes.h"

#include <algorithm>

#include "kernels/weights/elements.cuh"

namespace oscar::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kChunk = 8;       // columns per thread
constexpr int kThreadRows = 4;  // rows per thread

constexpr int bits_of(RowCode code) { return code == RowCode::kE2M1 || code == RowCode::kUnsigned4 ? 4 : 8; }
constexpr bool has_zeros(RowCode code) { return code == RowCode::kUnsigned4 || code == RowCode::kUnsigned8; }

// Eight codes, the first one in the lowest bits.
template <int kBits>
struct Codes;
template <>
struct Codes<8> {
  uint2 words;
  __device__ __forceinline__ std::uint32_t operator[](int i) const {
    return (i < 4 ? words.x : words.y) >> (i % 4 * 8) & 255u;
  }
};
template <>
struct Codes<4> {
  std::uint32_t words;
  __device__ __forceinline__ std::uint32_t operator[](int i) const { return words >> (i * 4) & 15u; }
};

template <RowCode kCode>
__device__ __forceinline__ float code_value(std::uint32_t code) {
  if constexpr (kCode == RowCode::kE4M3) return e4m3_value(static_cast<std::uint8_t>(code));
  if constexpr (kCode == RowCode::kInteger8) return static_cast<float>(static_cast<std::int8_t>(code));
  if constexpr (kCode == RowCode::kE2M1) {
    // Exponent and mantissa at their FP16 positions, whose bias is larger by 14; this also works for subnormal numbers.
    const auto half = static_cast<unsigned short>((code & 8u) << 12 | (code & 7u) << 9);
    return __half2float(__ushort_as_half(half)) * 16384.0f;
  }
  return static_cast<float>(code);
}

template <RowCode kCode>
__device__ __forceinline__ float scaled(const RowCodesParams& p, std::uint32_t code, float zero, float scale) {
  const float value = code_value<kCode>(code);
  return (has_zeros(kCode) ? value - zero : value) * scale;
}

// Scales of one row.
struct RowScales {
  std::int64_t first_scale, first_zero;  // of the row's group 0
  int zero_shift;

  template <RowCode kCode>
  __device__ static RowScales of(const RowCodesParams& p, std::uint32_t row) {
    constexpr std::uint32_t kPerWord = 32 / bits_of(kCode);
    const std::uint32_t block = p.block_rows == 1 ? row : row / static_cast<std::uint32_t>(p.block_rows);
    return {static_cast<std::int64_t>(block) * p.column_groups,
            static_cast<std::int64_t>(row / kPerWord) * p.column_groups,
            static_cast<int>(row % kPerWord) * bits_of(kCode)};
  }

  __device__ __forceinline__ float scale(const RowCodesParams& p, int group) const {
    const float own = scale_value(p.scale, first_scale + group, p.scale_type);
    if (p.second == SecondScale::kDivides) return __fdiv_rn(own, p.second_scale);
    return p.second == SecondScale::kMultiplies ? own * p.second_scale : own;
  }

  template <RowCode kCode>
  __device__ __forceinline__ float zero(const RowCodesParams& p, int group) const {
    if constexpr (!has_zeros(kCode)) return 0.0f;
    constexpr std::uint32_t kMask = (1u << bits_of(kCode)) - 1u;
    if (p.zeros == nullptr) return static_cast<float>((kMask + 1u) / 2u);
    return static_cast<float>(static_cast<std::uint32_t>(p.zeros[first_zero + group]) >> zero_shift & kMask);
  }
};

template <class T, RowCode kCode>
__device__ void one_by_one(const RowCodesParams& p, std::uint32_t row, int first) {
  constexpr int kBits = bits_of(kCode);
  const RowScales scales = RowScales::of<kCode>(p, row);
  const std::uint8_t* codes = p.codes + static_cast<std::int64_t>(row) * p.row_bytes;
  T* out = static_cast<T*>(p.weight) + static_cast<std::int64_t>(row) * p.columns;
  for (int k = first; k < min(first + kChunk, p.columns); ++k) {
    const int group = p.groups != nullptr ? p.groups[k] : k / p.block_columns;
    const std::uint32_t code = kBits == 8 ? codes[k] : codes[k / 2] >> (k % 2 * 4) & 15u;
    out[k] = rounded<T>(scaled<kCode>(p, code, scales.zero<kCode>(p, group), scales.scale(p, group)));
  }
}

// Grid: (tiles of rows, tiles of columns); block: (columns / 8, rows). whole: eight columns are read and written at
// once and share a scale.
template <class T, RowCode kCode>
__global__ void __launch_bounds__(kThreads) row_codes_kernel(const __grid_constant__ RowCodesParams p, bool whole) {
  const int k = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * kChunk;
  if (k >= p.columns) return;
  const std::uint32_t first = (blockIdx.x * kThreadRows) * blockDim.y + threadIdx.y;
  const auto rows = static_cast<std::uint32_t>(p.rows);
  if (!whole) {
    for (int i = 0; i < kThreadRows; ++i) {
      const std::uint32_t row = first + static_cast<std::uint32_t>(i) * blockDim.y;
      if (row < rows) one_by_one<T, kCode>(p, row, k);
    }
    return;
  }
  constexpr int kBits = bits_of(kCode);
  Codes<kBits> codes[kThreadRows];
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) {
    const std::uint32_t row = first + static_cast<std::uint32_t>(i) * blockDim.y;
    if (row >= rows) continue;
    const std::uint8_t* at = p.codes + static_cast<std::int64_t>(row) * p.row_bytes + k * kBits / 8;
    codes[i].words = __ldcs(reinterpret_cast<const decltype(Codes<kBits>::words)*>(at));
  }
  const int group = p.column_groups == 1 ? 0 : k / p.block_columns;
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) {
    const std::uint32_t row = first + static_cast<std::uint32_t>(i) * blockDim.y;
    if (row >= rows) continue;
    const RowScales scales = RowScales::of<kCode>(p, row);
    const float scale = scales.scale(p, group), zero = scales.zero<kCode>(p, group);
    float values[kChunk];
#pragma unroll
    for (int j = 0; j < kChunk; ++j) values[j] = scaled<kCode>(p, codes[i][j], zero, scale);
    store_eight(static_cast<T*>(p.weight) + static_cast<std::int64_t>(row) * p.columns + k, values);
  }
}

template <class T, RowCode kCode>
cudaError_t launch(const RowCodesParams& p, cudaStream_t stream) {
  constexpr int kCodeBytes = kChunk * bits_of(kCode) / 8;
  const bool one_scale = p.groups == nullptr && (p.column_groups == 1 || p.block_columns % kChunk == 0);
  const bool whole = one_scale && p.columns % kChunk == 0 && p.row_bytes % kCodeBytes == 0 &&
                     aligned(p.codes, kCodeBytes) && aligned(p.weight, 16);
  // As many threads per row as the columns need, in tiles of equal width.
  const int chunks = (p.columns + kChunk - 1) / kChunk, tiles = (chunks + kThreads - 1) / kThreads;
  const int width = ((chunks + tiles - 1) / tiles + 31) / 32 * 32, height = kThreads / width;
  const int tile_rows = height * kThreadRows;
  row_codes_kernel<T, kCode>
      <<<dim3(static_cast<unsigned>((p.rows + tile_rows - 1) / tile_rows), static_cast<unsigned>(tiles)),
         dim3(static_cast<unsigned>(width), static_cast<unsigned>(height)), 0, stream>>>(p, whole);
  return cudaGetLastError();
}

template <class T>
cudaError_t launch(const RowCodesParams& p, cudaStream_t stream) {
  switch (p.code) {
    case RowCode::kE4M3:
      return launch<T, RowCode::kE4M3>(p, stream);
    case RowCode::kInteger8:
      return launch<T, RowCode::kInteger8>(p, stream);
    case RowCode::kE2M1:
      return launch<T, RowCode::kE2M1>(p, stream);
    case RowCode::kUnsigned4:
      return launch<T, RowCode::kUnsigned4>(p, stream);
    case RowCode::kUnsigned8:
      return launch<T, RowCode::kUnsigned8>(p, stream);
  }
  return cudaErrorInvalidValue;
}

bool fits(const RowCodesParams& p) {
  constexpr int kMostColumns = 65535 * kThreads * kChunk;  // largest number of columns of a grid
  if (p.rows < 0 || p.columns < 1 || p.columns > kMostColumns || p.column_groups < 1 || p.block_rows < 1) return false;
  if (p.row_bytes < (static_cast<std::int64_t>(p.columns) * bits_of(p.code) + 7) / 8) return false;
  // Without a list the last column is in the last group.
  return p.groups != nullptr || (p.block_columns > 0 && (p.columns - 1) / p.block_columns < p.column_groups);
}

}  // namespace

cudaError_t dequantize_row_codes(const RowCodesParams& p, cudaStream_t stream) {
  if (!fits(p)) return cudaErrorInvalidValue;
  if (p.rows == 0) return cudaSuccess;
  return by_weight_type(p.weight_type, [&](auto of) { return launch<decltype(of)>(p, stream); });
}

}  // namespace oscar::kernels
