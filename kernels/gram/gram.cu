// A block takes one KV head and one run of its rows. BF16 tensor-core products are added in FP32 over 128 rows and then
// to FP64 sums in registers; a second kernel adds the runs in order. The products X^T X read the same rows as both
// operands. With a shift each row is two operands, a high and a low part.
#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/common/launch_kernel.cuh"
#include "kernels/gram/gram.h"
#include "kernels/gram/products.cuh"

namespace oscar::kernels {
namespace {

using namespace gram;

constexpr int kStages = 4;
constexpr int kChunksInFloat = 4;  // 128 rows

// Runs of rows per head: enough blocks for a GPU.
__host__ __device__ constexpr int splits(bool shifted) { return shifted ? 8 : 16; }

// Eight BF16 values minus their shifts: high parts in place, low parts, and their sum into `sum`.
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

// The range that a block adds up: chunks [begin, end) of the rows of one KV head.
template <int D, bool kShifted>
struct Run {
  int head, gqa_group;
  std::int64_t rows, begin, end;  // rows of the head; chunks

  __device__ __forceinline__ explicit Run(const GramParams& p)
      : head(blockIdx.y), gqa_group(p.heads / p.kv_heads), rows(p.tokens * gqa_group) {
    constexpr int kSplits = splits(kShifted);
    const std::int64_t chunks = (rows + kChunk - 1) / kChunk, each = (chunks + kSplits - 1) / kSplits;
    begin = blockIdx.x * each, end = min(chunks, begin + each);
  }

  // Starts a group of asynchronous copies: one chunk, with zeros after the end of the run.
  __device__ __forceinline__ void copy(const GramParams& p, std::int64_t chunk, Chunk<D>& to) const {
    for (int i = threadIdx.x; i < kChunk * D / 8; i += kThreads) {
      const int r = i / (D / 8), c = i % (D / 8) * 8;
      const std::int64_t row = chunk * kChunk + r;
      const bool live = chunk < end && row < rows;
      const std::int64_t token = live ? row / gqa_group : 0;
      const int member = live ? static_cast<int>(row % gqa_group) : 0;
      const std::uint16_t* source = p.x + token * p.stride + (head * gqa_group + member) * D + c;
      copy16(&to[r][c], source, live);
    }
    commit();
  }
};

// Rows with a shift: a thread splits the same eight channels of every kSharers-th row, and sums them.
template <int D>
struct ShiftedRows {
  static constexpr int kSharers = kThreads / (D / 8);
  int channels = 0;  // first of the eight channels
  float shift[8] = {};
  double sum[8] = {};

  __device__ __forceinline__ void load(const GramParams& p, int head) {
    channels = threadIdx.x % (D / 8) * 8;
#pragma unroll
    for (int i = 0; i < 8; ++i) shift[i] = __uint_as_float(std::uint32_t{p.shift[head * D + channels + i]} << 16);
  }

  // Splits a chunk into high and low parts. Its first row is `first` of the run's head, which has `end` rows.
  __device__ __forceinline__ void split(Chunk<D>& rows, Chunk<D>& low, std::int64_t first, std::int64_t end) {
    for (int r = threadIdx.x / (D / 8); r < kChunk; r += kSharers) {
      if (first + r < end) {
        split_rows(&rows[r][channels], &low[r][channels], shift, sum);
      } else {
        *reinterpret_cast<uint4*>(&low[r][channels]) = uint4{};  // the high parts are already zero
      }
    }
  }

  // Writes the sums of all threads, in order. scratch: shared memory that all threads have finished using after a
  // barrier.
  __device__ __forceinline__ void write(double* out, double (*scratch)[D]) const {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; ++i) scratch[threadIdx.x / (D / 8)][channels + i] = sum[i];
    __syncthreads();
    for (int c = threadIdx.x; c < D; c += kThreads) {
      double all = 0.0;
#pragma unroll
      for (int r = 0; r < kSharers; ++r) all += scratch[r][c];
      out[c] = all;
    }
  }
};

template <int D, bool kShifted>
__global__ void __launch_bounds__(kThreads, 1) gram_kernel(const __grid_constant__ GramParams p) {
  __shared__ __align__(16) Chunk<D> rows[kStages];
  __shared__ __align__(16) Chunk<D> low;  // used with a shift
  Products<D, kShifted> products;
  const Run<D, kShifted> run(p);
  ShiftedRows<D> shifted;
  if constexpr (kShifted) shifted.load(p, run.head);
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) run.copy(p, run.begin + s, rows[s]);
  int stage = 0;
  for (std::int64_t chunk = run.begin; chunk < run.end; ++chunk) {
    wait<kStages - 2>();
    __syncthreads();
    run.copy(p, chunk + kStages - 1, rows[(stage + kStages - 1) % kStages]);
    if constexpr (kShifted) {
      shifted.split(rows[stage], low, chunk * kChunk, run.rows);
      __syncthreads();
    }
    products.add(rows[stage], low);
    if ((chunk - run.begin) % kChunksInFloat == kChunksInFloat - 1) products.flush();
    stage = (stage + 1) % kStages;
  }
  products.flush();
  wait<0>();
  constexpr int kResult = D * D + (kShifted ? D : 0);  // numbers per head and run
  double* out = p.workspace + (static_cast<std::int64_t>(blockIdx.x) * p.kv_heads + run.head) * kResult;
  products.write(out);
  if constexpr (kShifted) {
    static_assert(sizeof(rows) >= sizeof(double) * ShiftedRows<D>::kSharers * D);
    shifted.write(out + D * D, reinterpret_cast<double(*)[D]>(&rows[0][0][0]));
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
  const dim3 grid = grid_of(splits(shifted), p.kv_heads), sums = grid_of(blocks_of(p.kv_heads * D * D, kThreads));
  const cudaError_t error = shifted ? launch_kernel<gram_kernel<D, true>>(grid, kThreads, stream, p)
                                    : launch_kernel<gram_kernel<D, false>>(grid, kThreads, stream, p);
  if (error != cudaSuccess) return error;
  return shifted ? launch_kernel<add_shifted_splits<D>>(sums, kThreads, stream, p)
                 : launch_kernel<add_splits<D>>(sums, kThreads, stream, p);
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
  return for_head_dim<64, 128>(p.head_dim, [&]<int D>() { return launch<D>(p, stream); });
}

}  // namespace oscar::kernels
