// A thread merges eight channels.
#include <cuda_bf16.h>

#include "kernels/chunks/merge_outputs.h"
#include "kernels/common/launch_kernel.cuh"

namespace oscar::kernels {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) merge_kernel(const __grid_constant__ MergeOutputsParams p) {
  const int vectors = p.head_dim / 8;
  const std::int64_t e = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t index = e / vectors;
  if (index >= static_cast<std::int64_t>(p.rows) * p.heads) return;
  const int i = static_cast<int>(e % vectors), head = static_cast<int>(index % p.heads);
  const std::int64_t row = index / p.heads, at = static_cast<std::int64_t>(head) * p.rows + row;
  const float a = p.lse[at], b = p.part_lse[at], top = fmaxf(a, b);
  float first = 1.0f, second = 0.0f, total = a;
  if (top > -INFINITY) {
    const float x = __expf(a - top), y = __expf(b - top);
    first = x / (x + y), second = y / (x + y), total = top + __logf(x + y);
  }
  uint4* to = reinterpret_cast<uint4*>(p.out + row * p.out_stride + head * p.head_dim) + i;
  const uint4 held = *to, part = reinterpret_cast<const uint4*>(p.part + index * p.head_dim)[i];
  uint4 made;
  const auto* x = reinterpret_cast<const __nv_bfloat162*>(&held);
  const auto* y = reinterpret_cast<const __nv_bfloat162*>(&part);
  auto* z = reinterpret_cast<__nv_bfloat162*>(&made);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float2 u = __bfloat1622float2(x[j]), v = __bfloat1622float2(y[j]);
    z[j] = __floats2bfloat162_rn(u.x * first + v.x * second, u.y * first + v.y * second);
  }
  *to = made;
  __syncthreads();  // the threads of a row and head, which are in one block, have read its log-sum-exp
  if (i == 0) p.lse[at] = total;
}

}  // namespace

cudaError_t merge_outputs(const MergeOutputsParams& p, cudaStream_t stream) {
  // Threads of one row must share a block.
  if (p.head_dim < 8 || p.head_dim > 512 || (p.head_dim & (p.head_dim - 1)) != 0 || p.out_stride % 8 != 0) {
    return cudaErrorInvalidValue;
  }
  const std::int64_t threads = static_cast<std::int64_t>(p.rows) * p.heads * (p.head_dim / 8);
  if (threads == 0) return cudaSuccess;
  return launch_kernel<merge_kernel>(grid_of(blocks_of(threads, kThreads)), kThreads, stream, p);
}

}  // namespace oscar::kernels
