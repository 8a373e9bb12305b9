// A block takes one KV head and one run of its rows: BF16 tensor-core products, added in FP32 over 128 rows and then to
// FP64 sums in registers; a second kernel adds the runs in order. The products X^T X read the same rows as both
// operands. With a shift each row is two operands, a high and a low part.
#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/gram.h"

namespace oscar::kernels {
namespace {

constexpr int kThreads = 256, kChunk = 32, kStages = 4;
constexpr int kChunksInFloat = 4;  // 128 rows

// Runs of rows of a head: enough blocks for a GPU.
__host__ __device__ constexpr int splits(bool shifted) { return shifted ? 8 : 16; }

__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void load_transposed(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

__device__ __forceinline__ void multiply(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                         std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Eight BF16 values less their shifts: high parts in place, low parts, and their sum into `sum`.
__device__ __forceinline__ void split_rows(std::uint16_t* high, std::uint16_t* low, const float (&shift)[8],
                                           double (&sum)[8]) {
  __nv_bfloat162 x[4], rest[4];
  *reinterpret_cast<uint4*>(x) = *reinterpret_cast<const uint4*>(high);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 v = __bfloat1622float2(x[i]);
    const float a = v.x - shift[2 * i], b = v.y - shift[2 * i + 1];
    sum[2 * i] += static_cast<double>(a), sum[2 * i + 1] += static_cast<double>(b);
    x[i] = __floats2bfloat162_rn(a, b);
    const float2 kept = __bfloat1622float2(x[i]);
    rest[i] = __floats2bfloat162_rn(a - kept.x, b - kept.y);
  }
  *reinterpret_cast<uint4*>(high) = *reinterpret_cast<const uint4*>(x);
  *reinterpret_cast<uint4*>(low) = *reinterpret_cast<const uint4*>(rest);
}

template <int D, bool kShifted>
__global__ void __launch_bounds__(kThreads, 1) gram_kernel(const __grid_constant__ GramParams p) {
  constexpr int kPitch = D + 8;                         // elements; the padding keeps ldmatrix free of bank conflicts
  constexpr int kTiles = D / 64, kColumns = D / 2 / 8;  // of a warp: 16 kTiles channels by 8 kColumns
  constexpr int kSplits = splits(kShifted);
  __shared__ __align__(16) std::uint16_t rows[kStages][kChunk][kPitch];
  __shared__ __align__(16) std::uint16_t low[kShifted ? kChunk : 1][kPitch];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.y;
  const int first_row = (warp % 4) * 16 * kTiles, first_column = warp / 4 * (D / 2);
  const int group = p.heads / p.kv_heads;
  const std::int64_t total = p.tokens * group;
  const std::int64_t chunks = (total + kChunk - 1) / kChunk, each = (chunks + kSplits - 1) / kSplits;
  const std::int64_t begin = blockIdx.x * each, end = min(chunks, begin + each);

  const auto copy = [&](std::int64_t chunk, int stage) {
    for (int i = threadIdx.x; i < kChunk * D / 8; i += kThreads) {
      const int r = i / (D / 8), c = i % (D / 8) * 8;
      const std::int64_t row = chunk * kChunk + r;
      const bool live = chunk < end && row < total;
      const std::int64_t token = live ? row / group : 0;
      const int member = live ? static_cast<int>(row % group) : 0;
      const std::uint16_t* source = p.x + token * p.stride + (head * group + member) * D + c;
      const int bytes = live ? 16 : 0;  // the rest is filled with zeros
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(&rows[stage][r][c])),
                   "l"(source), "r"(bytes)
                   : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };

  double sum[kTiles][kColumns][4];
#pragma unroll
  for (int m = 0; m < kTiles; ++m)
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[m][n][i] = 0.0;
  // With a shift: the eight channels of this thread's part of a row, the same in every row.
  float shift[8] = {};
  double row_sum[8] = {};
  const int my_channels = threadIdx.x % (D / 8) * 8;
  if constexpr (kShifted) {
#pragma unroll
    for (int i = 0; i < 8; ++i) shift[i] = __uint_as_float(std::uint32_t{p.shift[head * D + my_channels + i]} << 16);
  }
  float part[kTiles][kColumns][4] = {};
  const auto flush = [&] {
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int n = 0; n < kColumns; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[m][n][i] += static_cast<double>(part[m][n][i]), part[m][n][i] = 0.0f;
  };
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) copy(begin + s, s);
  int stage = 0;
  for (std::int64_t chunk = begin; chunk < end; ++chunk) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
    __syncthreads();
    copy(chunk + kStages - 1, (stage + kStages - 1) % kStages);
    if constexpr (kShifted) {
      for (int r = threadIdx.x / (D / 8); r < kChunk; r += kThreads / (D / 8)) {
        std::uint16_t *high = &rows[stage][r][my_channels], *rest = &low[r][my_channels];
        if (chunk * kChunk + r < total) {
          split_rows(high, rest, shift, row_sum);
        } else {
          *reinterpret_cast<uint4*>(rest) = uint4{};  // the high parts are zeros already
        }
      }
      __syncthreads();
    }
#pragma unroll
    for (int k = 0; k < kChunk; k += 16) {
      // Matrices of the first operand: (k, m), (k, m + 8), (k + 8, m), (k + 8, m + 8); of the second: (k, n), (k + 8,
      // n), (k, n + 8), (k + 8, n + 8).
      const auto first = [&](const std::uint16_t(*from)[kPitch], int m, std::uint32_t(&a)[4]) {
        load_transposed(a, shared_address(&from[k + lane % 8 + lane / 16 * 8][first_row + 16 * m + lane / 8 % 2 * 8]));
      };
      const auto second = [&](const std::uint16_t(*from)[kPitch], int n, std::uint32_t(&b)[4]) {
        load_transposed(b,
                        shared_address(&from[k + lane % 8 + lane / 8 % 2 * 8][first_column + 8 * n + lane / 16 * 8]));
      };
      std::uint32_t a[kTiles][4], a_low[kTiles][4];
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        first(rows[stage], m, a[m]);
        if constexpr (kShifted) first(low, m, a_low[m]);
      }
#pragma unroll
      for (int n = 0; n < kColumns; n += 2) {
        std::uint32_t b[4], b_low[4];
        second(rows[stage], n, b);
        if constexpr (kShifted) second(low, n, b_low);
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          multiply(part[m][n], a[m], b[0], b[1]);
          multiply(part[m][n + 1], a[m], b[2], b[3]);
          if constexpr (kShifted) {
            multiply(part[m][n], a[m], b_low[0], b_low[1]);
            multiply(part[m][n + 1], a[m], b_low[2], b_low[3]);
            multiply(part[m][n], a_low[m], b[0], b[1]);
            multiply(part[m][n + 1], a_low[m], b[2], b[3]);
            multiply(part[m][n], a_low[m], b_low[0], b_low[1]);
            multiply(part[m][n + 1], a_low[m], b_low[2], b_low[3]);
          }
        }
      }
    }
    if ((chunk - begin) % kChunksInFloat == kChunksInFloat - 1) flush();
    stage = (stage + 1) % kStages;
  }
  flush();
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  constexpr int kResult = D * D + (kShifted ? D : 0);  // numbers of a head and run
  double* out = p.workspace + (static_cast<std::int64_t>(blockIdx.x) * p.kv_heads + head) * kResult;
#pragma unroll
  for (int m = 0; m < kTiles; ++m)
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = first_row + 16 * m + lane / 4 + i / 2 * 8, column = first_column + 8 * n + lane % 4 * 2 + i % 2;
        out[row * D + column] = sum[m][n][i];
      }
  if constexpr (kShifted) {
    static_assert(sizeof(rows) >= sizeof(double) * kThreads / (D / 8) * D);
    auto* sums = reinterpret_cast<double(*)[D]>(&rows[0][0][0]);
    __syncthreads();  // the last rows have been read
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[threadIdx.x / (D / 8)][my_channels + i] = row_sum[i];
    __syncthreads();
    for (int c = threadIdx.x; c < D; c += kThreads) {
      double all = 0.0;
#pragma unroll
      for (int r = 0; r < kThreads / (D / 8); ++r) all += sums[r][c];
      out[D * D + c] = all;
    }
  }
}

template <int D>
__global__ void __launch_bounds__(kThreads) add_splits(const __grid_constant__ GramParams p) {
  const int elements = p.kv_heads * D * D, i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= elements) return;
  double total = 0.0;
#pragma unroll
  for (int s = 0; s < splits(false); ++s) total += p.workspace[static_cast<std::int64_t>(s) * elements + i];
  p.sum[i] += total;
}

// sum (y + c)^T (y + c) = sum y^T y + c^T s + s^T c + n c^T c with y = x - c and s = sum y.
template <int D>
__global__ void __launch_bounds__(kThreads) add_shifted_splits(const __grid_constant__ GramParams p) {
  constexpr int kResult = D * D + D;
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x), head = i / (D * D);
  if (head >= p.kv_heads) return;
  const int row = i / D % D, column = i % D;
  const auto of_runs = [&](int at) {
    double total = 0.0;
#pragma unroll
    for (int s = 0; s < splits(true); ++s) {
      total += p.workspace[(static_cast<std::int64_t>(s) * p.kv_heads + head) * kResult + at];
    }
    return total;
  };
  const auto shift = [&](int at) {
    return static_cast<double>(__uint_as_float(std::uint32_t{p.shift[head * D + at]} << 16));
  };
  const double n = static_cast<double>(p.tokens), c = shift(row), e = shift(column);
  const double s = of_runs(D * D + row), t = of_runs(D * D + column);
  p.sum[i] += of_runs(row * D + column) + (c * t + s * e + n * c * e);
  if (column == 0) p.row_sum[head * D + row] += s + n * c;
}

template <int D>
cudaError_t launch(const GramParams& p, cudaStream_t stream) {
  const bool shifted = p.shift != nullptr;
  const dim3 grid(static_cast<unsigned>(splits(shifted)), static_cast<unsigned>(p.kv_heads));
  const auto blocks = static_cast<unsigned>((p.kv_heads * D * D + kThreads - 1) / kThreads);
  if (shifted) {
    gram_kernel<D, true><<<grid, kThreads, 0, stream>>>(p);
    add_shifted_splits<D><<<blocks, kThreads, 0, stream>>>(p);
  } else {
    gram_kernel<D, false><<<grid, kThreads, 0, stream>>>(p);
    add_splits<D><<<blocks, kThreads, 0, stream>>>(p);
  }
  return cudaGetLastError();
}

}  // namespace

bool gram_built(int head_dim) { return head_dim == 64 || head_dim == 128; }

std::size_t gram_workspace_bytes(int kv_heads, int head_dim) {
  return sizeof(double) * splits(false) * static_cast<std::size_t>(kv_heads) *
         static_cast<std::size_t>(head_dim * head_dim);
}

cudaError_t add_gram(const GramParams& p, cudaStream_t stream) {
  if (p.kv_heads < 1 || p.heads % p.kv_heads != 0 || p.stride % 8 != 0) return cudaErrorInvalidValue;
  if (p.shift != nullptr && (p.row_sum == nullptr || p.heads != p.kv_heads)) return cudaErrorInvalidValue;
  if (p.tokens == 0) return cudaSuccess;
  switch (p.head_dim) {
    case 64:
      return launch<64>(p, stream);
    case 128:
      return launch<128>(p, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace oscar::kernels
