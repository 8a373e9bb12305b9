#include "kernels/gram/head_rows.h"

#include "kernels/common/launch_kernel.cuh"

namespace oscar::kernels {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ void load4(float (&to)[4], const std::uint16_t* from) {
  const uint2 bits = *reinterpret_cast<const uint2*>(from);
  to[0] = __uint_as_float(bits.x << 16), to[1] = __uint_as_float(bits.x & 0xffff0000u);
  to[2] = __uint_as_float(bits.y << 16), to[3] = __uint_as_float(bits.y & 0xffff0000u);
}

__device__ __forceinline__ void store4(float* to, const float (&from)[4]) {
  *reinterpret_cast<float4*>(to) = make_float4(from[0], from[1], from[2], from[3]);
}

// ATen's addcmul_ after a product: one rounding for an addition, two for a subtraction.
__device__ __forceinline__ float plus(float a, float c, float b, float s) { return __fmaf_rn(b, s, __fmul_rn(a, c)); }
__device__ __forceinline__ float minus(float a, float c, float b, float s) {
  return __fsub_rn(__fmul_rn(a, c), __fmul_rn(b, s));
}

// A thread takes four pairs of channels of a row, or four channels that RoPE does not rotate.
__global__ void __launch_bounds__(kThreads) rows_kernel(const __grid_constant__ HeadRowsParams p) {
  const int d = p.head_dim, pairs = p.pairs, lanes = (d - pairs) / 4;
  const std::int64_t i = blockIdx.x * std::int64_t{kThreads} + threadIdx.x, row = i / lanes;
  if (row >= p.tokens * p.heads) return;
  const int group = p.heads / p.kv_heads, lane = static_cast<int>(i % lanes), head = static_cast<int>(row % p.heads);
  const std::int64_t token = row / p.heads;
  const int member = head % group;
  const std::int64_t place = p.by_member ? member * p.tokens + token : token * group + member;
  const std::int64_t matrix = p.tokens * group * d, to = head / group * p.copies * matrix + place * d;
  const std::uint16_t* x = p.x + token * p.stride + head * d;
  const bool turns = lane < pairs / 4;
  const int first = turns ? 4 * lane : pairs + 4 * lane, second = first + pairs;
  float a[4], b[4] = {};
  load4(a, x + first);
  if (turns) load4(b, x + second);
  if (p.square != nullptr) {
    const float weight = __fsqrt_rn(p.square[head * p.square_stride + token]);
#pragma unroll
    for (int n = 0; n < 4; ++n) a[n] = __fmul_rn(a[n], weight), b[n] = __fmul_rn(b[n], weight);
  }
  for (int copy = 0; p.plain != nullptr && copy < p.copies; ++copy) {
    store4(p.plain + to + copy * matrix + first, a);
    if (turns) store4(p.plain + to + copy * matrix + second, b);
  }
  if (p.before == nullptr) return;
  if (!turns) return store4(p.before + to + first, a);
  const float4 c4 = *reinterpret_cast<const float4*>(p.cos + token * pairs + 4 * lane);
  const float4 s4 = *reinterpret_cast<const float4*>(p.sin + token * pairs + 4 * lane);
  const float c[4] = {c4.x, c4.y, c4.z, c4.w}, s[4] = {s4.x, s4.y, s4.z, s4.w};
  float u[4], v[4];
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    u[n] = plus(a[n], c[n], b[n], s[n]);
    v[n] = minus(b[n], c[n], a[n], s[n]);
  }
  store4(p.before + to + first, u);
  store4(p.before + to + second, v);
}

}  // namespace

bool head_rows_built(int head_dim, int pairs) { return head_dim % 4 == 0 && pairs % 4 == 0; }

cudaError_t head_rows(const HeadRowsParams& p, cudaStream_t stream) {
  const std::int64_t threads = p.tokens * p.heads * ((p.head_dim - p.pairs) / 4);
  if (threads == 0) return cudaSuccess;
  return launch_kernel<rows_kernel>(grid_of(blocks_of(threads, kThreads)), kThreads, stream, p);
}

}  // namespace oscar::kernels
