// Decode attention over any cache: a grid of parts of 64 tokens, then their merge. Simple on purpose: one warp per key,
// one thread for one or two channels of the values, and every element is decoded where it is needed.
#include "kernels/fallback/fallback_attention.h"

#include <algorithm>

#include "kernels/decode/visible.cuh"
#include "kernels/fallback/read_element.cuh"

namespace oscar::kernels {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kHeads = 8;  // query heads per block: one softmax per warp
constexpr int kTile = 32;  // tokens between two steps of the softmax: one per lane
constexpr int kPart = 64;  // tokens per block
constexpr int kMaxDim = 2 * kThreads;
static_assert(kHeads == kWarps && kTile == 32 && kPart % kTile == 0);

// Floats of a part in the workspace, [B, Hq, parts] of them: largest logit, sum of weights, then the sums of weighted
// values [D].
__host__ __device__ constexpr long long part_floats(int head_dim) { return 2 + static_cast<long long>(head_dim); }

int part_count(const FallbackAttentionParams& p) { return std::max(1, (p.max_tokens + kPart - 1) / kPart); }
int head_tiles(const FallbackAttentionParams& p) { return (p.query_heads / p.kv_heads + kHeads - 1) / kHeads; }

// The query heads of a block, all of one sequence and one KV head.
struct Block {
  int sequence, kv_head, first_head, heads;
};

// logits[h][t] of tokens first + t, t < tokens: one warp per token, lanes over the channels.
__device__ __forceinline__ void key_logits(const FallbackAttentionParams& p, const Block& b, int first, int tokens,
                                           const TokenPlace* places, float (*logits)[kTile]) {
  const int lane = threadIdx.x % 32, d = p.head_dim;
  const long long head0 = static_cast<long long>(b.sequence) * p.query_heads + b.first_head;
  for (int t = threadIdx.x / 32; t < tokens; t += kWarps) {
    const TokenPlace place = places[t];
    const float* query = p.query + head0 * d;
    float dots[kHeads] = {};
    for (int c = lane; c < d; c += 32) {
      const float k = read_element(p.key, place, b.kv_head, c);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        if (h < b.heads) dots[h] += query[h * d + c] * k;
      }
    }
    if (p.position_query != nullptr) {
      const float* turned = p.position_query + head0 * d;
      const float* rope_phases = p.rope_phases + static_cast<long long>(first + t) * d;
      for (int c = lane; c < d; c += 32) {
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          if (h < b.heads) dots[h] += turned[h * d + c] * rope_phases[c];
        }
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int offset = 16; offset > 0; offset /= 2) dots[h] += __shfl_xor_sync(0xffffffffu, dots[h], offset);
      if (lane != 0 || h >= b.heads) continue;
      float x = p.scale * dots[h];
      if (p.logit_shift != nullptr) x += p.logit_shift[head0 + h];
      if (p.soft_cap > 0.0f) x = p.soft_cap * tanhf(x / p.soft_cap);
      logits[h][t] = x;
    }
  }
}

// Running softmax of one head, equal in all lanes of its warp. A NaN among the logits persists in `sum`.
struct Softmax {
  float largest = -INFINITY, sum = 0.0f;

  // x: logit of the lane's token, -inf for none. Returns its weight; *factor: factor of earlier sums.
  __device__ __forceinline__ float add(float x, float* factor) {
    float top = x;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, offset));
    top = fmaxf(top, largest);
    const float base = top == -INFINITY ? 0.0f : top;
    const float weight = expf(x - base);
    *factor = expf(largest - base);
    float total = weight;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) total += __shfl_xor_sync(0xffffffffu, total, offset);
    sum = sum * *factor + total;
    largest = top;
    return weight;
  }
};

// Grid: (parts, KV heads x tiles of 8 query heads, batch). A thread has the channels threadIdx.x + 256 i, i < kSpans.
template <int kSpans>
__global__ void __launch_bounds__(kThreads) parts_kernel(const __grid_constant__ FallbackAttentionParams p) {
  __shared__ float logits[kHeads][kTile];  // later holds the weights
  __shared__ float factors[kHeads];
  __shared__ TokenPlace places[2][kTile];  // for keys, for values
  const int gqa_group = p.query_heads / p.kv_heads, tiles = (gqa_group + kHeads - 1) / kHeads, d = p.head_dim;
  const int in_group = static_cast<int>(blockIdx.y) % tiles * kHeads, kv_head = static_cast<int>(blockIdx.y) / tiles;
  const Block b{static_cast<int>(blockIdx.z), kv_head, kv_head * gqa_group + in_group,
                min(kHeads, gqa_group - in_group)};
  const FallbackSequence& s = p.sequences[b.sequence];
  const int seen = first_visible(s.length, p.sliding_window, p.chunk);
  const int part = static_cast<int>(blockIdx.x);
  const int begin = max(part * kPart, seen), end = min((part + 1) * kPart, s.length);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  Softmax softmax;
  float sums[kSpans][kHeads] = {};  // for the thread's channels
  for (int first = begin; first < end; first += kTile) {
    const int tokens = min(kTile, end - first);
    if (warp < 2 && lane < tokens) {
      places[warp][lane] = warp == 0 ? place_of(p.key, s.key, first + lane, p.kv_heads, d, kv_head)
                                     : place_of(p.value, s.value, first + lane, p.kv_heads, d, kv_head);
    }
    __syncthreads();
    key_logits(p, b, first, tokens, places[0], logits);
    __syncthreads();
    if (warp < b.heads) {
      float factor;
      const float weight = softmax.add(lane < tokens ? logits[warp][lane] : -INFINITY, &factor);
      logits[warp][lane] = weight;
      if (lane == 0) factors[warp] = factor;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kSpans; ++i) {
      const int channel = static_cast<int>(threadIdx.x) + i * kThreads;
      if (channel >= d) break;
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        if (h < b.heads) sums[i][h] *= factors[h];
      }
#pragma unroll 4
      for (int t = 0; t < tokens; ++t) {
        const TokenPlace place = places[1][t];
        const float v = read_element(p.value, place, kv_head, channel);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          if (h < b.heads) sums[i][h] += logits[h][t] * v;
        }
      }
    }
    __syncthreads();
  }

  float* workspace = static_cast<float*>(p.workspace);
  const auto part_of = [&](int h) {
    const long long head = static_cast<long long>(b.sequence) * p.query_heads + b.first_head + h;
    return workspace + (head * gridDim.x + part) * part_floats(d);
  };
  if (warp < b.heads && lane == 0) part_of(warp)[0] = softmax.largest, part_of(warp)[1] = softmax.sum;
#pragma unroll
  for (int i = 0; i < kSpans; ++i) {
    const int channel = static_cast<int>(threadIdx.x) + i * kThreads;
    if (channel >= d) return;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (h < b.heads) part_of(h)[2 + channel] = sums[i][h];
    }
  }
}

// Grid: (query heads, batch). A part without tokens has sum 0 and is skipped.
__global__ void __launch_bounds__(kThreads) merge_kernel(const __grid_constant__ FallbackAttentionParams p, int parts) {
  const int d = p.head_dim;
  const long long head = static_cast<long long>(blockIdx.y) * p.query_heads + blockIdx.x;
  const float* first = static_cast<const float*>(p.workspace) + head * parts * part_floats(d);
  const bool has_sink = p.sink_logits != nullptr;
  const float sink = has_sink ? p.sink_logits[blockIdx.x] : -INFINITY;
  float top = sink;
  for (int i = 0; i < parts; ++i) top = fmaxf(top, first[i * part_floats(d)]);
  for (int channel = static_cast<int>(threadIdx.x); channel < d; channel += kThreads) {
    float keys = 0.0f, sum = 0.0f;
    for (int i = 0; i < parts; ++i) {
      const float* part = first + i * part_floats(d);
      if (part[1] == 0.0f) continue;
      const float factor = expf(part[0] - top);
      keys += part[1] * factor;
      sum += part[2 + channel] * factor;
    }
    const float total = has_sink ? keys + expf(sink - top) : keys;
    if (p.weight_sum != nullptr && channel == 0) p.weight_sum[head] = total == 0.0f ? 0.0f : keys / total;
    p.output[head * d + channel] = total == 0.0f ? 0.0f : sum / total;
  }
}

bool has_pages(const FallbackSide& side, int head_dim) {
  return side.page_tokens > 0 && side.layout.head_dim == head_dim;
}

}  // namespace

std::size_t fallback_attention_workspace_bytes(const FallbackAttentionParams& p) {
  return static_cast<std::size_t>(p.batch) * static_cast<std::size_t>(p.query_heads) *
         static_cast<std::size_t>(part_count(p)) * static_cast<std::size_t>(part_floats(p.head_dim)) * sizeof(float);
}

cudaError_t fallback_attention(const FallbackAttentionParams& p, cudaStream_t stream) {
  const bool heads = p.kv_heads > 0 && p.query_heads > 0 && p.query_heads % p.kv_heads == 0;
  if (!heads || p.head_dim < 1 || p.head_dim > kMaxDim || p.batch < 0 || p.max_tokens < 0) return cudaErrorInvalidValue;
  if (!has_pages(p.key, p.head_dim) || !has_pages(p.value, p.head_dim)) return cudaErrorInvalidValue;
  const int rows = p.kv_heads * head_tiles(p);
  if (p.batch > 65535 || rows > 65535) return cudaErrorInvalidValue;
  if (p.batch == 0) return cudaSuccess;
  const int parts = part_count(p);
  const dim3 grid(static_cast<unsigned>(parts), static_cast<unsigned>(rows), static_cast<unsigned>(p.batch));
  if (p.head_dim <= kThreads) {
    parts_kernel<1><<<grid, kThreads, 0, stream>>>(p);
  } else {
    parts_kernel<2><<<grid, kThreads, 0, stream>>>(p);
  }
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  merge_kernel<<<dim3(static_cast<unsigned>(p.query_heads), static_cast<unsigned>(p.batch)), kThreads, 0, stream>>>(
      p, parts);
  return cudaGetLastError();
}

}  // namespace oscar::kernels
