#include <cuda_fp16.h>

#include "kernels/common/fragment_pages.h"
#include "tests/bench/decode_step/step_kernels.h"

namespace oscar::bench {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

__device__ __forceinline__ float low(std::uint32_t x) { return __uint_as_float(x << 16); }
__device__ __forceinline__ float high(std::uint32_t x) { return __uint_as_float(x & 0xffff0000u); }

__device__ __forceinline__ uint4 load_stream(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

__device__ __forceinline__ float dot8(uint4 a, uint4 b, float sum) {
  sum = fmaf(low(a.x), low(b.x), sum), sum = fmaf(high(a.x), high(b.x), sum);
  sum = fmaf(low(a.y), low(b.y), sum), sum = fmaf(high(a.y), high(b.y), sum);
  sum = fmaf(low(a.z), low(b.z), sum), sum = fmaf(high(a.z), high(b.z), sum);
  sum = fmaf(low(a.w), low(b.w), sum), sum = fmaf(high(a.w), high(b.w), sum);
  return sum;
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

__device__ __forceinline__ float block_total(float x, float* scratch) {
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  float total = 0.0f;
  for (unsigned w = 0; w < blockDim.x / 32; ++w) total += scratch[w];
  __syncthreads();
  return total;
}

__device__ __forceinline__ float silu(float x) { return x / (1.0f + __expf(-x)); }

// Larger values first, then smaller rows.
__device__ __forceinline__ unsigned long long packed(float value, int row) {
  const std::uint32_t bits = __float_as_uint(value);
  const std::uint32_t order = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<unsigned long long>(order) << 32 | (0xffffffffu - static_cast<std::uint32_t>(row));
}

// Programmatic dependent launch (sm_90): the next product may start, and ask for its first weights, while this one
// drains; it touches what this one writes only after the wait.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

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

__global__ void __launch_bounds__(kThreads)
    residual_norm_kernel(Bf16* hidden, const Bf16* delta, const Bf16* weight, Bf16* normed, int columns, float eps) {
  __shared__ float scratch[kWarps];
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * columns;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < columns; i += kThreads) {
    float x = __bfloat162float(hidden[row + i]);
    if (delta != nullptr) {
      const Bf16 added = __float2bfloat16(x + __bfloat162float(delta[row + i]));
      hidden[row + i] = added;
      x = __bfloat162float(added);
    }
    sum = fmaf(x, x, sum);
  }
  const float scale = rsqrtf(block_total(sum, scratch) / static_cast<float>(columns) + eps);
  for (int i = threadIdx.x; i < columns; i += kThreads) {
    normed[row + i] = __float2bfloat16(__bfloat162float(__float2bfloat16(__bfloat162float(hidden[row + i]) * scale)) *
                                       __bfloat162float(weight[i]));
  }
}

__global__ void silu_gate_kernel(const Bf16* gate_up, Bf16* out, int columns) {
  const std::int64_t b = blockIdx.y;
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= columns) return;
  const Bf16* row = gate_up + b * 2 * columns;
  out[b * columns + i] = __float2bfloat16(silu(__bfloat162float(row[i])) * __bfloat162float(row[columns + i]));
}

__global__ void argmax_kernel(const Bf16* logits, unsigned long long* best, int columns) {
  __shared__ unsigned long long warps[kWarps];
  const Bf16* row = logits + static_cast<std::int64_t>(blockIdx.y) * columns;
  unsigned long long top = 0;
  for (int i = static_cast<int>(blockIdx.x) * kThreads + threadIdx.x; i < columns; i += gridDim.x * kThreads) {
    top = max(top, packed(__bfloat162float(row[i]), i));
  }
  for (int offset = 16; offset > 0; offset /= 2) top = max(top, __shfl_xor_sync(0xffffffffu, top, offset));
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = top;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kWarps; ++w) top = max(top, warps[w]);
  atomicMax(best + blockIdx.y, top);
}

__global__ void embed_kernel(const Bf16* table, unsigned long long* best, std::int32_t* tokens, Bf16* hidden,
                             int columns) {
  const int b = static_cast<int>(blockIdx.x);
  const auto token = static_cast<std::int32_t>(0xffffffffu - static_cast<std::uint32_t>(best[b]));
  for (int i = threadIdx.x; i < columns; i += blockDim.x) {
    hidden[static_cast<std::int64_t>(b) * columns + i] = table[static_cast<std::int64_t>(token) * columns + i];
  }
  __syncthreads();
  if (threadIdx.x == 0) tokens[b] = token, best[b] = 0;
}

constexpr int kHeadDim = 128;
__global__ void __launch_bounds__(kHeadDim) append_bf16_kernel(const __grid_constant__ Bf16AppendParams p) {
  __shared__ float scratch[kHeadDim / 32], row[kHeadDim];
  const int heads = p.query_heads + 2 * p.kv_heads, head = static_cast<int>(blockIdx.x),
            b = static_cast<int>(blockIdx.y);
  const int j = static_cast<int>(threadIdx.x), position = p.lengths[b] - 1;
  const bool query = head < p.query_heads, value = head >= p.query_heads + p.kv_heads;
  float x = __bfloat162float(p.qkv[(static_cast<std::int64_t>(b) * heads + head) * kHeadDim + j]);
  if (!value) {
    const float scale = rsqrtf(block_total(x * x, scratch) / static_cast<float>(kHeadDim) + p.eps);
    x = x * scale * __bfloat162float((query ? p.q_norm : p.k_norm)[j]);
    row[j] = x;
    __syncthreads();
    const std::int64_t at = static_cast<std::int64_t>(position) * (kHeadDim / 2) + j % (kHeadDim / 2);
    const float turned = row[j ^ (kHeadDim / 2)] * p.rope_sin[at];
    x = x * p.rope_cos[at] + (j < kHeadDim / 2 ? -turned : turned);
  }
  if (query) {
    p.query[(static_cast<std::int64_t>(b) * p.query_heads + head) * kHeadDim + j] = __float2bfloat16(x);
    return;
  }
  const int h = head - p.query_heads - (value ? p.kv_heads : 0);
  Bf16* cache = value ? p.values : p.keys;
  cache[((static_cast<std::int64_t>(b) * p.kv_heads + h) * p.capacity + position) * kHeadDim + j] = __float2bfloat16(x);
}

__device__ unsigned hash(unsigned long long i) {
  unsigned long long x = i * 0x9E3779B97F4A7C15ull + 1;
  x = (x ^ (x >> 31)) * 0xBF58476D1CE4E5B9ull;
  return static_cast<unsigned>(x >> 32);
}
__global__ void fill_pages_kernel(std::uint8_t* pages, long long count, int head_dim) {
  const kernels::CodePage layout{head_dim};
  const long long halves = count * layout.bytes() / 2;
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < halves; i += gridDim.x * 256ll) {
    const int inside = static_cast<int>(i * 2 % layout.bytes());
    const unsigned r = hash(static_cast<unsigned long long>(i));
    const float u = static_cast<float>(r & 0xffffu) / 65536.0f;
    __half* at = reinterpret_cast<__half*>(pages) + i;
    const bool codes =
        inside < layout.key_params() || (inside >= layout.value_codes() && inside < layout.value_params());
    if (codes) {
      *reinterpret_cast<unsigned short*>(at) = static_cast<unsigned short>(r);
    } else {
      *at = __float2half((inside & 2) == 0 ? 0.3f + u : 1.2f + 0.6f * u);
    }
  }
}

template <GemvEnd kEnd>
cudaError_t launch_gemv(const GemvParams& p, cudaStream_t stream) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
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

cudaError_t residual_norm(Bf16* hidden, const Bf16* delta, const Bf16* weight, Bf16* normed, int batch, int columns,
                          float eps, cudaStream_t stream) {
  residual_norm_kernel<<<static_cast<unsigned>(batch), kThreads, 0, stream>>>(hidden, delta, weight, normed, columns,
                                                                              eps);
  return cudaGetLastError();
}

cudaError_t silu_gate(const Bf16* gate_up, Bf16* out, int batch, int columns, cudaStream_t stream) {
  silu_gate_kernel<<<dim3(static_cast<unsigned>((columns + 255) / 256), static_cast<unsigned>(batch)), 256, 0,
                     stream>>>(gate_up, out, columns);
  return cudaGetLastError();
}

cudaError_t argmax(const Bf16* logits, unsigned long long* best, int batch, int columns, cudaStream_t stream) {
  argmax_kernel<<<dim3(8, static_cast<unsigned>(batch)), kThreads, 0, stream>>>(logits, best, columns);
  return cudaGetLastError();
}

cudaError_t embed(const Bf16* table, unsigned long long* best, std::int32_t* tokens, Bf16* hidden, int batch,
                  int columns, cudaStream_t stream) {
  embed_kernel<<<static_cast<unsigned>(batch), kThreads, 0, stream>>>(table, best, tokens, hidden, columns);
  return cudaGetLastError();
}

unsigned long long packed_token(std::int32_t token) {
  return 0xffffffff00000000ull | (0xffffffffu - static_cast<std::uint32_t>(token));
}

cudaError_t append_bf16(const Bf16AppendParams& p, cudaStream_t stream) {
  append_bf16_kernel<<<dim3(static_cast<unsigned>(p.query_heads + 2 * p.kv_heads), static_cast<unsigned>(p.batch)),
                       kHeadDim, 0, stream>>>(p);
  return cudaGetLastError();
}

cudaError_t fill_pages(std::uint8_t* pages, long long count, int head_dim, cudaStream_t stream) {
  fill_pages_kernel<<<2048, 256, 0, stream>>>(pages, count, head_dim);
  return cudaGetLastError();
}

}  // namespace oscar::bench
