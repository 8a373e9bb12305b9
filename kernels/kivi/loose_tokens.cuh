// Tokens outside the full pages: BF16 on one side or both, or in a page that is not full. A block handles 32 at a time:
// it decodes their rows to FP32 in shared memory, then warp h attends for query head h.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/decode/mma.cuh"
#include "kernels/decode/visible.cuh"
#include "kernels/kivi/kivi_attention.h"

namespace oscar::kernels {

inline constexpr int kLooseTokens = 32;

// Rows of 32 tokens; four words more than D in a row spread the banks.
template <int D>
struct LooseRows {
  float key[kLooseTokens][D + 4], value[kLooseTokens][D + 4];
  float query[2][8][D];  // in the model's basis, and in the basis of the codes
  bool key_coded[kLooseTokens], value_coded[kLooseTokens];
};

// Element `channel` of coded token `token` after the sink: keys in lines of 128 tokens, values in lines of D channels.
template <int D>
__device__ __forceinline__ float coded_key(const KiviSide& side, const std::int32_t* table, int kv_head, int token,
                                           int channel) {
  const std::uint8_t* page = side.pages + __ldg(table + token / 128) * side.page_bytes;
  const std::uint8_t* codes = page + (side.norms ? 512 : 0) + static_cast<long long>(kv_head) * side.head_bytes;
  const int i = token % 128;
  const int code = __ldg(codes + channel * 32 + i % 32) >> (2 * (i / 32)) & 3;
  const __half2 pair = __ldg(reinterpret_cast<const __half2*>(codes + D * 32) + channel * (128 / side.quant_group) +
                             i / side.quant_group);
  const float x = static_cast<float>(code) * __low2float(pair) + __high2float(pair);
  return side.norms ? x * __ldg(reinterpret_cast<const float*>(page) + i) : x;
}

template <int D>
__device__ __forceinline__ float coded_value(const KiviSide& side, const std::int32_t* table, int kv_head, int token,
                                             int channel) {
  const std::uint8_t* codes =
      side.pages + __ldg(table + token / 128) * side.page_bytes + static_cast<long long>(kv_head) * side.head_bytes;
  const int i = token % 128;
  const int code = __ldg(codes + i * (D / 4) + channel % (D / 4)) >> (2 * (channel / (D / 4))) & 3;
  const __half2 pair =
      __ldg(reinterpret_cast<const __half2*>(codes + 32 * D) + i * (D / side.quant_group) + channel / side.quant_group);
  return static_cast<float>(code) * __low2float(pair) + __high2float(pair);
}

// Loads the item's queries and the rows of loose tokens [first, first + 32) into shared memory; zeros after the end of
// the sequence. All threads call it. position_of(i): position of the i-th loose token.
template <int D, class PositionOf>
__device__ __forceinline__ void load_loose(const KiviAttentionParams& p, const KiviSequence& s, int sequence,
                                           int kv_head, int first_head, int heads, int first, LooseRows<D>& rows,
                                           const PositionOf& position_of) {
  for (int i = threadIdx.x; i < heads * D; i += blockDim.x) {
    const long long at = (static_cast<long long>(sequence) * p.query_heads + first_head + i / D) * D + i % D;
    rows.query[0][i / D][i % D] = p.q[at];
    rows.query[1][i / D][i % D] = p.q_coded[at];
  }
  // Eight channels of a token at a time.
  for (int i = threadIdx.x; i < kLooseTokens * D / 8; i += blockDim.x) {
    const int token = i / (D / 8), channel = i % (D / 8) * 8, position = position_of(first + token),
              body = position - p.sink;
    const bool inside = position < s.length, key_coded = inside && body >= 0 && body < s.key_body,
               value_coded = inside && body >= 0 && body < s.value_body;
    const auto plain = [&](float* to, const std::uint16_t* sink_rows, const std::uint16_t* recent_rows, int row0) {
      const std::uint16_t* row = body < 0 ? sink_rows + static_cast<long long>(position) * p.kv_heads * D
                                          : recent_rows + static_cast<long long>(body - row0) * p.kv_heads * D;
      const uint4 eight =
          inside ? *reinterpret_cast<const uint4*>(row + kv_head * D + channel) : make_uint4(0u, 0u, 0u, 0u);
      const std::uint32_t pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
      for (int c = 0; c < 4; ++c) to[2 * c] = low_bf16(pairs[c]), to[2 * c + 1] = high_bf16(pairs[c]);
    };
    float *key = rows.key[token] + channel, *value = rows.value[token] + channel;
    if (key_coded) {
#pragma unroll
      for (int c = 0; c < 8; ++c) key[c] = coded_key<D>(p.key, s.key_pages, kv_head, body, channel + c);
    } else {
      plain(key, s.sink_key, s.recent_key, s.key_first);
    }
    if (value_coded) {
#pragma unroll
      for (int c = 0; c < 8; ++c) value[c] = coded_value<D>(p.value, s.value_pages, kv_head, body, channel + c);
    } else {
      plain(value, s.sink_value, s.recent_value, s.value_first);
    }
    if (channel == 0) rows.key_coded[token] = key_coded, rows.value_coded[token] = value_coded;
  }
}

// Attends to loose tokens [first, first + 32) of a sequence, counted over the sink and then the tokens after the `full`
// pages. One head per warp, head < heads. The caller stores m, l and the sums of the lane's channels lane + 32 i.
template <int D>
struct LooseResult {
  float m = -1e30f, l = 0.0f, plain[D / 32] = {}, coded[D / 32] = {};
};

template <int D>
__device__ __forceinline__ LooseResult<D> attend_loose(const KiviAttentionParams& p, int sequence, int kv_head,
                                                       int first_head, int heads, int full, int first,
                                                       LooseRows<D>& rows) {
  const KiviSequence& s = p.sequences[sequence];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  const int sink = min(p.sink, s.length);
  // Position of the i-th loose token.
  const auto position_of = [&](int i) { return i < sink ? i : i + 128 * full; };
  const int begin = first_visible(s.length, p.sliding_window, p.chunk);

  load_loose<D>(p, s, sequence, kv_head, first_head, heads, first, rows, position_of);
  __syncthreads();
  LooseResult<D> result;
  if (warp >= heads) return result;
  const int position = position_of(first + lane);
  const float4* query = reinterpret_cast<const float4*>(rows.query[rows.key_coded[lane] ? 1 : 0][warp]);
  const float4* key = reinterpret_cast<const float4*>(rows.key[lane]);
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 8
  for (int c = 0; c < D / 4; ++c) {
    const float4 x = query[c], y = key[c];
    sum.x = fmaf(x.x, y.x, sum.x), sum.y = fmaf(x.y, y.y, sum.y), sum.z = fmaf(x.z, y.z, sum.z),
    sum.w = fmaf(x.w, y.w, sum.w);
  }
  float score = ((sum.x + sum.y) + (sum.z + sum.w)) * p.scale;
  if (p.soft_cap > 0.0f) score = p.soft_cap * tanhf(score / p.soft_cap);
  score = position >= begin && position < s.length ? score * 1.44269504f : -INFINITY;
  float top = score;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, offset));
  if (top == -INFINITY) return result;
  const float weight = exp2_approx(score - top);
  result.m = top;
  result.l = weight;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) result.l += __shfl_xor_sync(0xffffffffu, result.l, offset);
#pragma unroll 4
  for (int token = 0; token < kLooseTokens; ++token) {
    const float w = __shfl_sync(0xffffffffu, weight, token);
    const float to_coded = rows.value_coded[token] ? w : 0.0f, to_plain = w - to_coded;
#pragma unroll
    for (int i = 0; i < D / 32; ++i) {
      const float value = rows.value[token][lane + 32 * i];
      result.coded[i] = fmaf(to_coded, value, result.coded[i]);
      result.plain[i] = fmaf(to_plain, value, result.plain[i]);
    }
  }
  return result;
}

}  // namespace oscar::kernels
