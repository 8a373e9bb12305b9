// A block takes kRows rows of one KV head. Its threads divide the channels of a sum into kParts, and each part reads
// its rows of the matrix once for all rows.
#include <cuda_bf16.h>

#include "kernels/common/launch_kernel.cuh"
#include "kernels/decode/model_outputs.h"

namespace oscar::kernels {
namespace {

constexpr int kThreads = 512;

// kFour: a row's sum takes four channels before the next row's. Then 64 registers suffice, and two blocks fit where one
// of attention has ended. With few blocks the other order is faster (H200: by 1.5 us of a layer's 33).
template <int D, int kRows, bool kFour>
__global__ void __launch_bounds__(kThreads) model_outputs_kernel(const __grid_constant__ ModelOutputsParams p) {
  constexpr int kParts = kThreads / D, kSteps = D / kParts;
  __shared__ __align__(16) float rows[kRows][D];
  __shared__ float sums[kParts][kRows][D];
  const int j = static_cast<int>(threadIdx.x) % D, part = static_cast<int>(threadIdx.x) / D, head = blockIdx.y;
  const int gqa_group = p.query_heads / p.kv_heads, total = p.batch * gqa_group;
  const float* matrix = p.matrix + static_cast<std::int64_t>(p.matrix_heads == 1 ? 0 : head) * D * D +
                        static_cast<std::int64_t>(part) * kSteps * D + j;
  // The matrix depends on nothing, so its first rows are requested before the outputs.
  constexpr int kAhead = kSteps < 32 ? kSteps : 32;
  float ahead[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) ahead[i] = __ldg(matrix + i * D);
  wait_for_previous();
  const auto place = [&](int r) {  // sequence and query head of a row
    const int index = static_cast<int>(blockIdx.x) * kRows + r;
    return index < total ? make_int2(index / gqa_group, head * gqa_group + index % gqa_group) : make_int2(-1, 0);
  };
  for (int e = threadIdx.x; e < kRows * D; e += kThreads) {
    const int2 at = place(e / D);
    const bool held = at.x >= 0 && p.lengths[at.x] > 0;
    rows[e / D][e % D] = held ? p.rows[(static_cast<std::int64_t>(at.x) * p.query_heads + at.y) * D + e % D] : 0.0f;
  }
  __syncthreads();
  float sum[kRows] = {};
  constexpr int kEach = kFour ? 4 : 1;
  const auto add = [&](int i, const float(&weight)[kEach]) {
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int k = 0; k < kEach; ++k) sum[r] += rows[r][part * kSteps + i + k] * weight[k];
  };
  constexpr int kUnrolled = kSteps <= 128 ? 128 : 8;  // turns of the second loop; code must stay small
#pragma unroll
  for (int i = 0; i < kAhead; i += kEach) {
    float weight[kEach];
#pragma unroll
    for (int k = 0; k < kEach; ++k) weight[k] = ahead[i + k];
    add(i, weight);
  }
#pragma unroll kUnrolled
  for (int i = kAhead; i < kSteps; i += kEach) {
    float weight[kEach];
#pragma unroll
    for (int k = 0; k < kEach; ++k) weight[k] = __ldg(matrix + (i + k) * D);
    add(i, weight);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) sums[part][r][j] = sum[r];
  __syncthreads();
  for (int e = threadIdx.x; e < kRows * D; e += kThreads) {
    const int r = e / D, i = e % D;
    const int2 at = place(r);
    if (at.x < 0) continue;
    float x = 0.0f;
    if (p.lengths[at.x] > 0) {
#pragma unroll
      for (int k = 0; k < kParts; ++k) x += sums[k][r][i];
      if (p.mean != nullptr) x += p.mean[head * D + i];
    }
    p.out[at.x * p.out_stride + at.y * D + i] = __bfloat16_as_ushort(__float2bfloat16_rn(x));
  }
}

template <int D, int kRows, bool kFour>
cudaError_t launch_rows(const ModelOutputsParams& p, int rows, cudaStream_t stream) {
  return launch_early<model_outputs_kernel<D, kRows, kFour>>(grid_of(blocks_of(rows, kRows), p.kv_heads), kThreads,
                                                             stream, p);
}

}  // namespace

cudaError_t model_outputs(const ModelOutputsParams& p, cudaStream_t stream) {
  if (p.kv_heads < 1 || p.query_heads % p.kv_heads != 0 || p.lengths == nullptr || p.matrix == nullptr) {
    return cudaErrorInvalidValue;
  }
  if (p.batch == 0) return cudaSuccess;
  const int rows = p.batch * (p.query_heads / p.kv_heads);
  return for_fast_head_dim(p.head_dim, [&]<int D>() {
    if (rows * p.kv_heads <= 256) return launch_rows<D, 1, false>(p, rows, stream);
    return rows * p.kv_heads <= 1024 ? launch_rows<D, 8, false>(p, rows, stream)
                                     : launch_rows<D, 8, true>(p, rows, stream);
  });
}

}  // namespace oscar::kernels
