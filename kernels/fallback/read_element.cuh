// One element of a cached key or value, from any tier and page layout.
#pragma once

#include <cuda_fp16.h>

#include "kernels/fallback/fallback_attention.h"

namespace oscar::kernels {

// Storage of one token of one KV head: a BF16 row, or a slot of a page.
struct TokenPlace {
  const std::uint16_t* row;  // [D] BF16; null: the token is coded
  const std::uint8_t* page;  // page of the KV head
  int slot;
};

__device__ __forceinline__ float bfloat16_float(unsigned bits) { return __uint_as_float(bits << 16); }
__device__ __forceinline__ float float16_float(unsigned bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}
// Two 16-bit parameters; their position is a multiple of 4 bytes.
__device__ __forceinline__ std::uint32_t param_pair(const std::uint8_t* at) {
  return *reinterpret_cast<const std::uint32_t*>(at);
}

// Token j of the sequence; j must be below its length.
__device__ inline TokenPlace place_of(const FallbackSide& side, const FallbackSequenceSide& s, int j, int kv_heads,
                                      int head_dim, int kv_head) {
  const int behind = j - s.sink_tokens;
  if (behind >= 0 && behind < s.body_tokens) {
    const std::uint8_t* page = side.pages + s.page_table[behind / side.page_tokens] * side.page_bytes;
    return {nullptr, page + static_cast<long long>(kv_head) * side.head_bytes, behind % side.page_tokens};
  }
  const FallbackTier& tier = behind < 0 ? s.sink : s.recent;
  const int row = (tier.first + (behind < 0 ? j : behind - s.body_tokens)) % tier.capacity;
  return {tier.rows + (static_cast<long long>(row) * kv_heads + kv_head) * head_dim, nullptr, 0};
}

// xhat of a SideLayout (page_layout.h). sigma: [4] of the KV head.
__device__ inline float plane_element(const FallbackSide& side, const float* sigma, const TokenPlace& place,
                                      int channel) {
  const SideLayout& layout = side.layout;
  for (int b = 0; b < layout.planes; ++b) {
    const PlaneLayout& plane = layout.plane[b];
    const int i = channel - plane.first_channel;
    if (i < 0 || i >= plane.channels) continue;
    const int bit = side.values ? plane.value_bit(place.slot, i) : plane.key_bit(place.slot, i);
    const int code = place.page[plane.offset + bit / 8] >> (bit % 8) & ((1 << plane.width) - 1);
    if (layout.params == ParamKind::kScaleByte) {
      const int e = static_cast<std::int8_t>(place.page[layout.param_byte(place.slot, b)]);
      const float level = static_cast<float>(code) + 0.5f - 0.5f * static_cast<float>(1 << plane.width);
      return sigma[plane.sigma] * exp2f(static_cast<float>(e) / 32.0f) * level;
    }
    const std::uint32_t pair = param_pair(place.page + layout.param_byte(place.slot, i / layout.quant_group));
    const bool half = layout.params == ParamKind::kFloat16Pair;
    const float s = half ? float16_float(pair & 0xffffu) : bfloat16_float(pair & 0xffffu);
    const float z = half ? float16_float(pair >> 16) : bfloat16_float(pair >> 16);
    return s * (static_cast<float>(code) - z);
  }
  return 0.0f;  // a block of width 0
}

__device__ inline float read_element(const FallbackSide& side, const TokenPlace& place, int kv_head, int channel) {
  if (place.row != nullptr) return bfloat16_float(place.row[channel]);
  return plane_element(side, side.sigma + 4 * kv_head, place, channel);
}

}  // namespace oscar::kernels
