// Few rows: a block takes kRows rows of one KV head, and its threads divide the channels of a sum into kParts, each of
// which reads its rows of the matrix once for all rows. Many rows: 16 in a block, by tensor cores (row_tile.cuh). What
// does not depend on attention is read while attention runs (H200: 1 to 6 us of a layer less).
#include <cuda_bf16.h>

#include "kernels/common/launch_kernel.cuh"
#include "kernels/common/load_early.cuh"
#include "kernels/decode/model_outputs.h"
#include "kernels/decode/row_tile.cuh"

namespace oscar::kernels {
namespace {

constexpr int kThreads = 512;

// A row of a KV head: a sequence's query head.
template <int D>
struct Row {
  int sequence = -1, query_head = 0;  // sequence -1: behind the last row

  __device__ __forceinline__ Row() = default;
  __device__ __forceinline__ Row(const ModelOutputsParams& p, int row) {
    const int gqa_group = p.query_heads / p.kv_heads, total = p.batch * gqa_group, head = blockIdx.y;
    sequence = row < total ? row / gqa_group : -1;
    query_head = head * gqa_group + row % gqa_group;
  }
  __device__ __forceinline__ bool held(const ModelOutputsParams& p) const {
    return sequence >= 0 && load_early(p.lengths + sequence) > 0;
  }
  __device__ __forceinline__ const float* from(const ModelOutputsParams& p) const {
    return p.rows + (static_cast<std::int64_t>(sequence) * p.query_heads + query_head) * D;
  }
  __device__ __forceinline__ std::uint16_t* to(const ModelOutputsParams& p) const {
    return p.out + sequence * p.out_stride + query_head * D;
  }
};

template <int D>
__device__ __forceinline__ const float* matrix_of(const ModelOutputsParams& p) {
  return p.matrix + static_cast<std::int64_t>(p.matrix_heads == 1 ? 0 : blockIdx.y) * D * D;
}

template <int D>
__device__ __forceinline__ float mean_of(const ModelOutputsParams& p, int channel) {
  return p.mean != nullptr ? load_early(p.mean + blockIdx.y * D + channel) : 0.0f;
}

template <int D, int kRows>
__global__ void __launch_bounds__(kThreads) few_rows_kernel(const __grid_constant__ ModelOutputsParams p) {
  constexpr int kParts = kThreads / D, kSteps = D / kParts, kElements = (kRows * D + kThreads - 1) / kThreads;
  __shared__ __align__(16) float rows[kRows][D];
  __shared__ float sums[kParts][kRows][D];
  const int j = static_cast<int>(threadIdx.x) % D, part = static_cast<int>(threadIdx.x) / D;
  const float* matrix = matrix_of<D>(p) + static_cast<std::int64_t>(part) * kSteps * D + j;
  constexpr int kAhead = kSteps < 32 ? kSteps : 32;
  float ahead[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) ahead[i] = load_early(matrix + i * D);
  const auto place = [](int n) { return static_cast<int>(threadIdx.x) + n * kThreads; };
  Row<D> at[kElements];
  bool held[kElements];
  float mean[kElements];
#pragma unroll
  for (int n = 0; n < kElements; ++n) {
    if (place(n) < kRows * D) at[n] = Row<D>(p, static_cast<int>(blockIdx.x) * kRows + place(n) / D);
    held[n] = at[n].held(p), mean[n] = mean_of<D>(p, place(n) % D);
  }
  wait_for_previous();
#pragma unroll
  for (int n = 0; n < kElements; ++n) {
    if (place(n) < kRows * D) rows[place(n) / D][place(n) % D] = held[n] ? at[n].from(p)[place(n) % D] : 0.0f;
  }
  __syncthreads();
  float sum[kRows] = {};
  const auto add = [&](int i, float weight) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) sum[r] += rows[r][part * kSteps + i] * weight;
  };
  constexpr int kUnrolled = kSteps <= 128 ? 128 : 8;  // turns of the second loop; code must stay small
#pragma unroll
  for (int i = 0; i < kAhead; ++i) add(i, ahead[i]);
#pragma unroll kUnrolled
  for (int i = kAhead; i < kSteps; ++i) add(i, __ldg(matrix + i * D));
#pragma unroll
  for (int r = 0; r < kRows; ++r) sums[part][r][j] = sum[r];
  __syncthreads();
#pragma unroll
  for (int n = 0; n < kElements; ++n) {
    if (at[n].sequence < 0) continue;
    float x = 0.0f;
    if (held[n]) {
#pragma unroll
      for (int k = 0; k < kParts; ++k) x += sums[k][place(n) / D][place(n) % D];
      x += mean[n];
    }
    at[n].to(p)[place(n) % D] = __bfloat16_as_ushort(__float2bfloat16_rn(x));
  }
}

template <int D>
__global__ void __launch_bounds__(RowTile<D>::kThreads) many_rows_kernel(const __grid_constant__ ModelOutputsParams p) {
  constexpr int kRows = RowTile<D>::kRows, kLoads = kRows * D / 4 / RowTile<D>::kThreads;
  __shared__ RowTile<D> tile;
  const typename RowTile<D>::Matrix matrix(matrix_of<D>(p));
  const int first = static_cast<int>(blockIdx.x) * kRows;
  const auto place = [](int n) { return 4 * (static_cast<int>(threadIdx.x) + n * RowTile<D>::kThreads); };
  bool held[kLoads];
  const float* from[kLoads];
#pragma unroll
  for (int n = 0; n < kLoads; ++n) {
    const Row<D> row(p, first + place(n) / D);
    held[n] = row.held(p), from[n] = row.from(p) + place(n) % D;
  }
  const Row<D> rows[2] = {{p, first + tile.row(0)}, {p, first + tile.row(1)}};
  const bool written[2] = {rows[0].held(p), rows[1].held(p)};
  float2 mean[2];
#pragma unroll
  for (int n = 0; n < 2; ++n) mean[n] = make_float2(mean_of<D>(p, tile.channel(n)), mean_of<D>(p, tile.channel(n) + 1));
  wait_for_previous();
#pragma unroll
  for (int n = 0; n < kLoads; ++n)
    tile.put(place(n) / D, place(n) % D, held[n] ? *reinterpret_cast<const float4*>(from[n]) : float4{});
  __syncthreads();
  float sum[2][4] = {};
  tile.multiply(matrix, sum);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (rows[h].sequence < 0) continue;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float2 x = make_float2(sum[n][2 * h] + mean[n].x, sum[n][2 * h + 1] + mean[n].y);
      *reinterpret_cast<__nv_bfloat162*>(rows[h].to(p) + tile.channel(n)) =
          written[h] ? __float22bfloat162_rn(x) : __nv_bfloat162{};
    }
  }
}

template <int D, int kRows>
cudaError_t launch_few(const ModelOutputsParams& p, int rows, cudaStream_t stream) {
  return launch_early<few_rows_kernel<D, kRows>>(grid_of(blocks_of(rows, kRows), p.kv_heads), kThreads, stream, p);
}

}  // namespace

cudaError_t model_outputs(const ModelOutputsParams& p, cudaStream_t stream) {
  if (p.kv_heads < 1 || p.query_heads % p.kv_heads != 0 || p.lengths == nullptr || p.matrix == nullptr) {
    return cudaErrorInvalidValue;
  }
  if (p.batch == 0) return cudaSuccess;
  const int rows = p.batch * (p.query_heads / p.kv_heads);
  return for_fast_head_dim(p.head_dim, [&]<int D>() {
    if (rows * p.kv_heads <= 256) return launch_few<D, 1>(p, rows, stream);
    if constexpr (D == 128) {  // larger heads have no registers for the matrix; 64 was not measured
      const bool pairs = p.out_stride % 2 == 0 && reinterpret_cast<std::uintptr_t>(p.out) % 4 == 0;
      if (rows * p.kv_heads > 1024 && pairs) {
        return launch_early<many_rows_kernel<D>>(grid_of(blocks_of(rows, RowTile<D>::kRows), p.kv_heads),
                                                 RowTile<D>::kThreads, stream, p);
      }
    }
    return launch_few<D, 8>(p, rows, stream);
  });
}

}  // namespace oscar::kernels
