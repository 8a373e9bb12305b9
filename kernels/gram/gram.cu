// A block takes one KV head and one of kSplits runs of rows: BF16 tensor-core products of 32 rows, added to FP64 sums
// in registers; a second kernel adds the splits in order. The products X^T X read the same rows as both operands.
#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/gram.h"

namespace oscar::kernels {
namespace {

constexpr int kThreads = 256, kChunk = 32, kStages = 4, kSplits = 16;

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

template <int D>
__global__ void __launch_bounds__(kThreads, 1) gram_kernel(const __grid_constant__ GramParams p) {
  constexpr int kPitch = D + 8;                         // elements; the padding keeps ldmatrix free of bank conflicts
  constexpr int kTiles = D / 64, kColumns = D / 2 / 8;  // of a warp: 16 kTiles channels by 8 kColumns
  __shared__ __align__(16) std::uint16_t rows[kStages][kChunk][kPitch];
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
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) copy(begin + s, s);
  int stage = 0;
  for (std::int64_t chunk = begin; chunk < end; ++chunk) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
    __syncthreads();
    copy(chunk + kStages - 1, (stage + kStages - 1) % kStages);
    float part[kTiles][kColumns][4] = {};
#pragma unroll
    for (int k = 0; k < kChunk; k += 16) {
      std::uint32_t a[kTiles][4];
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {  // matrices: (k, m), (k, m + 8), (k + 8, m), (k + 8, m + 8)
        load_transposed(
            a[m], shared_address(&rows[stage][k + lane % 8 + lane / 16 * 8][first_row + 16 * m + lane / 8 % 2 * 8]));
      }
#pragma unroll
      for (int n = 0; n < kColumns; n += 2) {  // matrices: (k, n), (k + 8, n), (k, n + 8), (k + 8, n + 8)
        std::uint32_t b[4];
        load_transposed(
            b, shared_address(&rows[stage][k + lane % 8 + lane / 8 % 2 * 8][first_column + 8 * n + lane / 16 * 8]));
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          multiply(part[m][n], a[m], b[0], b[1]);
          multiply(part[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int n = 0; n < kColumns; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[m][n][i] += static_cast<double>(part[m][n][i]);
    stage = (stage + 1) % kStages;
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  double* out = p.workspace + (static_cast<std::int64_t>(blockIdx.x) * p.kv_heads + head) * D * D;
#pragma unroll
  for (int m = 0; m < kTiles; ++m)
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = first_row + 16 * m + lane / 4 + i / 2 * 8, column = first_column + 8 * n + lane % 4 * 2 + i % 2;
        out[row * D + column] = sum[m][n][i];
      }
}

__global__ void __launch_bounds__(kThreads) add_splits(const double* parts, double* sum, int elements) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= elements) return;
  double total = 0.0;
#pragma unroll
  for (int s = 0; s < kSplits; ++s) total += parts[static_cast<std::int64_t>(s) * elements + i];
  sum[i] += total;
}

template <int D>
cudaError_t launch(const GramParams& p, cudaStream_t stream) {
  gram_kernel<D><<<dim3(kSplits, static_cast<unsigned>(p.kv_heads)), kThreads, 0, stream>>>(p);
  const int elements = p.kv_heads * D * D;
  add_splits<<<static_cast<unsigned>((elements + kThreads - 1) / kThreads), kThreads, 0, stream>>>(p.workspace, p.sum,
                                                                                                   elements);
  return cudaGetLastError();
}

}  // namespace

bool gram_built(int head_dim) { return head_dim == 64 || head_dim == 128; }

std::size_t gram_workspace_bytes(int kv_heads, int head_dim) {
  return sizeof(double) * kSplits * static_cast<std::size_t>(kv_heads) * static_cast<std::size_t>(head_dim * head_dim);
}

cudaError_t add_gram(const GramParams& p, cudaStream_t stream) {
  if (p.kv_heads < 1 || p.heads % p.kv_heads != 0 || p.stride % 8 != 0) return cudaErrorInvalidValue;
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
