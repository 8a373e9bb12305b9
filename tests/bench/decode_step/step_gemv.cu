// Matrix-vector products of one sequence. The next product may start, and ask for its first weights, while this one
// drains.
#include "kernels/common/launch_kernel.cuh"
#include "tests/bench/decode_step/step_device.cuh"

namespace oscar::bench {
namespace {

using kernels::let_next_start, kernels::wait_for_previous;

// A warp a row (two rows with a gate). The row of x is kept in shared memory.
template <GemvEnd kEnd>
__global__ void __launch_bounds__(kThreads) gemv_kernel(const __grid_constant__ GemvParams p) {
  extern __shared__ __align__(16) Bf16 x[];
  __shared__ float scratch[kWarps];
  __shared__ unsigned long long best[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = static_cast<int>(blockIdx.x) * kWarps + warp;
  let_next_start();
  constexpr int kAhead = kEnd == GemvEnd::kGate ? 4 : 8;  // columns are a multiple of 256, at least 256 kAhead
  const Bf16* w = p.w + static_cast<std::int64_t>(min(row, p.rows - 1)) * p.columns;
  const Bf16* up = w + static_cast<std::int64_t>(p.rows) * p.columns;
  uint4 ahead[kAhead], ahead_up[kEnd == GemvEnd::kGate ? kAhead : 1];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    ahead[i] = load_stream(w + lane * 8 + 256 * i);
    if constexpr (kEnd == GemvEnd::kGate) ahead_up[i] = load_stream(up + lane * 8 + 256 * i);
  }
  wait_for_previous();
  for (int i = threadIdx.x * 8; i < p.columns; i += kThreads * 8) {
    *reinterpret_cast<uint4*>(x + i) = *reinterpret_cast<const uint4*>(p.x + i);
  }
  if (p.norm != nullptr) {
    float sum = 0.0f;
    for (int i = threadIdx.x * 8; i < p.columns; i += kThreads * 8) {
      const uint4 v = *reinterpret_cast<const uint4*>(x + i);
      sum = dot8(v, v, sum);
    }
    const float scale = rsqrtf(block_total(sum, scratch) / static_cast<float>(p.columns) + p.eps);
    for (int i = threadIdx.x * 8; i < p.columns; i += kThreads * 8) {
      for (int j = 0; j < 8; ++j) {
        x[i + j] = __float2bfloat16(__bfloat162float(__float2bfloat16(__bfloat162float(x[i + j]) * scale)) *
                                    __bfloat162float(p.norm[i + j]));
      }
    }
  }
  __syncthreads();
  float sum = 0.0f, second = 0.0f;
  if (row < p.rows) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const uint4 v = *reinterpret_cast<const uint4*>(x + lane * 8 + 256 * i);
      sum = dot8(ahead[i], v, sum);
      if constexpr (kEnd == GemvEnd::kGate) second = dot8(ahead_up[i], v, second);
    }
#pragma unroll 8
    for (int i = lane * 8 + 256 * kAhead; i < p.columns; i += 256) {
      const uint4 a = load_stream(w + i), v = *reinterpret_cast<const uint4*>(x + i);
      sum = dot8(a, v, sum);
      if constexpr (kEnd == GemvEnd::kGate) second = dot8(load_stream(up + i), v, second);
    }
  }
  sum = warp_sum(sum);
  if constexpr (kEnd == GemvEnd::kGate) second = warp_sum(second);
  if constexpr (kEnd == GemvEnd::kArgmax) {
    if (lane == 0) best[warp] = row < p.rows ? packed(__bfloat162float(__float2bfloat16(sum)), row) : 0ull;
    __syncthreads();
    if (threadIdx.x == 0) {
      unsigned long long top = best[0];
      for (int w = 1; w < kWarps; ++w) top = max(top, best[w]);
      atomicMax(p.best, top);
    }
    return;
  }
  if (lane != 0 || row >= p.rows) return;
  if constexpr (kEnd == GemvEnd::kGate) {
    sum = silu(__bfloat162float(__float2bfloat16(sum))) * __bfloat162float(__float2bfloat16(second));
  }
  if constexpr (kEnd == GemvEnd::kResidual) {
    sum = __bfloat162float(__float2bfloat16(sum)) + __bfloat162float(p.residual[row]);
  }
  p.y[row] = __float2bfloat16(sum);
}

template <GemvEnd kEnd>
cudaError_t launch_gemv(const GemvParams& p, cudaStream_t stream) {
  cudaLaunchAttribute early = kernels::early_start();
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>((p.rows + kWarps - 1) / kWarps));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<std::size_t>(p.columns) * sizeof(Bf16);
  config.stream = stream;
  config.attrs = &early, config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, gemv_kernel<kEnd>, p);
}

}  // namespace

cudaError_t gemv(const GemvParams& p, GemvEnd end, cudaStream_t stream) {
  if (p.columns % 256 != 0 || p.columns < 2048 || p.columns > 16384) return cudaErrorInvalidValue;
  switch (end) {
    case GemvEnd::kPlain:
      return launch_gemv<GemvEnd::kPlain>(p, stream);
    case GemvEnd::kResidual:
      return launch_gemv<GemvEnd::kResidual>(p, stream);
    case GemvEnd::kGate:
      return launch_gemv<GemvEnd::kGate>(p, stream);
    case GemvEnd::kArgmax:
      return launch_gemv<GemvEnd::kArgmax>(p, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace oscar::bench
