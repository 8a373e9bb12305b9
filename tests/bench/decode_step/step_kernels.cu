#include <cuda_fp16.h>

#include "kernels/common/fragment_pages.h"
#include "tests/bench/decode_step/step_device.cuh"

namespace oscar::bench {
namespace {

// Eight BF16 numbers at a time.
__device__ __forceinline__ uint4 load8(const Bf16* p) { return *reinterpret_cast<const uint4*>(p); }
__device__ __forceinline__ std::uint32_t pair_of(float x, float y) {
  const __nv_bfloat162 two = __floats2bfloat162_rn(x, y);
  return *reinterpret_cast<const std::uint32_t*>(&two);
}
template <class F>  // f(word of a, word of b) -> word
__device__ __forceinline__ uint4 each_pair(uint4 a, uint4 b, F&& f) {
  return make_uint4(f(a.x, b.x), f(a.y, b.y), f(a.z, b.z), f(a.w, b.w));
}

__global__ void __launch_bounds__(kThreads)
    rms_norm_kernel(const Bf16* hidden, const Bf16* weight, Bf16* normed, int columns, float eps) {
  __shared__ float scratch[kWarps];
  constexpr int kMost = 2;  // columns: at most 8 kMost kThreads
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * columns;
  uint4 x[kMost], w[kMost];
  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < kMost; ++k) {
    const int i = 8 * (threadIdx.x + kThreads * k);
    x[k] = w[k] = make_uint4(0, 0, 0, 0);
    if (i < columns) x[k] = load8(hidden + row + i), w[k] = load8(weight + i);
    sum = dot8(x[k], x[k], sum);
  }
  const float scale = rsqrtf(block_total(sum, scratch) / static_cast<float>(columns) + eps);
#pragma unroll
  for (int k = 0; k < kMost; ++k) {
    const int i = 8 * (threadIdx.x + kThreads * k);
    if (i >= columns) continue;
    *reinterpret_cast<uint4*>(normed + row + i) = each_pair(x[k], w[k], [&](std::uint32_t a, std::uint32_t b) {
      const std::uint32_t scaled = pair_of(low(a) * scale, high(a) * scale);
      return pair_of(low(scaled) * low(b), high(scaled) * high(b));
    });
  }
}

__global__ void __launch_bounds__(kThreads) silu_gate_kernel(const Bf16* gate_up, Bf16* out, int columns) {
  const std::int64_t b = blockIdx.y;
  const int i = 8 * static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= columns) return;
  const Bf16* row = gate_up + b * 2 * columns;
  *reinterpret_cast<uint4*>(out + b * columns + i) =
      each_pair(load8(row + i), load8(row + columns + i), [](std::uint32_t gate, std::uint32_t up) {
        return pair_of(silu(low(gate)) * low(up), silu(high(gate)) * high(up));
      });
}

__global__ void __launch_bounds__(kThreads) argmax_kernel(const Bf16* logits, unsigned long long* best, int columns) {
  __shared__ unsigned long long warps[kWarps];
  const Bf16* row = logits + static_cast<std::int64_t>(blockIdx.y) * columns;
  float value = -INFINITY;
  int at = columns;
  const auto take = [&](float x, int i) {
    if (x > value) value = x, at = i;
  };
#pragma unroll 4
  for (int i = 8 * (static_cast<int>(blockIdx.x) * kThreads + threadIdx.x); i < columns;
       i += 8 * gridDim.x * kThreads) {
    const uint4 x = load8(row + i);
    take(low(x.x), i), take(high(x.x), i + 1), take(low(x.y), i + 2), take(high(x.y), i + 3);
    take(low(x.z), i + 4), take(high(x.z), i + 5), take(low(x.w), i + 6), take(high(x.w), i + 7);
  }
  unsigned long long top = at < columns ? packed(value, at) : 0;
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
  // Timed apart, nothing is chosen between two calls: token 0.
  const unsigned long long chosen = best[b];
  const auto token = static_cast<std::int32_t>(chosen == 0 ? 0 : 0xffffffffu - static_cast<std::uint32_t>(chosen));
  for (int i = threadIdx.x; i < columns; i += blockDim.x) {
    hidden[static_cast<std::int64_t>(b) * columns + i] = table[static_cast<std::int64_t>(token) * columns + i];
  }
  __syncthreads();
  if (threadIdx.x == 0) tokens[b] = token, best[b] = 0;
}

constexpr int kHeadDim = 128;
// Channel threadIdx.x of one query or key, after norm and RoPE.
__device__ float normed_and_turned(const Bf16AppendParams& p, float x, const Bf16* norm, int position) {
  __shared__ float scratch[kHeadDim / 32], row[kHeadDim];
  const int j = static_cast<int>(threadIdx.x);
  const float scale = rsqrtf(block_total(x * x, scratch) / static_cast<float>(kHeadDim) + p.eps);
  x = x * scale * __bfloat162float(norm[j]);
  row[j] = x;
  __syncthreads();
  const std::int64_t at = static_cast<std::int64_t>(position) * (kHeadDim / 2) + j % (kHeadDim / 2);
  const float turned = row[j ^ (kHeadDim / 2)] * p.rope_sin[at];
  return x * p.rope_cos[at] + (j < kHeadDim / 2 ? -turned : turned);
}

__global__ void __launch_bounds__(kHeadDim)
    norm_and_rope_kernel(const __grid_constant__ Bf16AppendParams p, Bf16* qkv) {
  const int head = static_cast<int>(blockIdx.x), b = static_cast<int>(blockIdx.y);
  const std::int64_t row = static_cast<std::int64_t>(b) * (p.query_heads + 2 * p.kv_heads) + head;
  Bf16& x = qkv[row * kHeadDim + threadIdx.x];
  const Bf16* norm = head < p.query_heads ? p.q_norm : p.k_norm;
  x = __float2bfloat16(normed_and_turned(p, __bfloat162float(x), norm, p.lengths[b] - 1));
}

__global__ void __launch_bounds__(kHeadDim) append_bf16_kernel(const __grid_constant__ Bf16AppendParams p) {
  const int heads = p.query_heads + 2 * p.kv_heads, head = static_cast<int>(blockIdx.x),
            b = static_cast<int>(blockIdx.y);
  const int j = static_cast<int>(threadIdx.x), position = p.lengths[b] - 1;
  const bool query = head < p.query_heads, value = head >= p.query_heads + p.kv_heads;
  float x = __bfloat162float(p.qkv[(static_cast<std::int64_t>(b) * heads + head) * kHeadDim + j]);
  if (!value) x = normed_and_turned(p, x, query ? p.q_norm : p.k_norm, position);
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

}  // namespace

cudaError_t rms_norm(const Bf16* hidden, const Bf16* weight, Bf16* normed, int batch, int columns, float eps,
                     cudaStream_t stream) {
  if (columns % 8 != 0 || columns > 16 * kThreads) return cudaErrorInvalidValue;
  rms_norm_kernel<<<static_cast<unsigned>(batch), kThreads, 0, stream>>>(hidden, weight, normed, columns, eps);
  return cudaGetLastError();
}

cudaError_t silu_gate(const Bf16* gate_up, Bf16* out, int batch, int columns, cudaStream_t stream) {
  if (columns % 8 != 0) return cudaErrorInvalidValue;
  const int each = 8 * kThreads;
  silu_gate_kernel<<<dim3(static_cast<unsigned>((columns + each - 1) / each), static_cast<unsigned>(batch)), kThreads,
                     0, stream>>>(gate_up, out, columns);
  return cudaGetLastError();
}

cudaError_t argmax(const Bf16* logits, unsigned long long* best, int batch, int columns, cudaStream_t stream) {
  if (columns % 8 != 0) return cudaErrorInvalidValue;
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

cudaError_t norm_and_rope(const Bf16AppendParams& p, Bf16* qkv, cudaStream_t stream) {
  norm_and_rope_kernel<<<dim3(static_cast<unsigned>(p.query_heads + p.kv_heads), static_cast<unsigned>(p.batch)),
                         kHeadDim, 0, stream>>>(p, qkv);
  return cudaGetLastError();
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
