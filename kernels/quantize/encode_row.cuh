// Rows of a run and their codes, processed by full warps. The KV head is blockIdx.y.
#pragma once

#include "kernels/common/fragment_pages.h"
#include "kernels/common/rope_mean.h"
#include "kernels/quantize/blocks.cuh"
#include "kernels/quantize/quantize_pages.h"
#include "kernels/quantize/uniform.cuh"

namespace oscar::kernels {

// The r-th token of a run in the windows.
struct WindowRow {
  const std::uint8_t* page;
  int slot;

  __device__ inline WindowRow(const QuantizePagesParams& p, int head, int first_row, int r) {
    const int ring = p.ring_pages * kPageTokens, sequence = first_row / ring;
    const int at = (first_row - sequence * ring + r) % ring;
    const int id = p.window_table[sequence * (p.sink_pages + p.ring_pages) + p.sink_pages + at / kPageTokens];
    page = p.windows + (static_cast<std::int64_t>(id) * p.kv_heads + head) * window_page_bytes(p.layout.head_dim);
    slot = at % kPageTokens;
  }
  __device__ inline float load(const QuantizePagesParams& p, int i) const {
    return __bfloat162float(
        *reinterpret_cast<const __nv_bfloat16*>(page + window_offset(p.layout.head_dim, p.value_side, slot, i)));
  }
};

// Channel i of the r-th token of a run.
__device__ inline float load(const QuantizePagesParams& p, int head, int first_row, int r, int i) {
  if (p.windows != nullptr) return WindowRow(p, head, first_row, r).load(p, i);
  const std::int64_t index = ((static_cast<std::int64_t>(first_row) + r) * p.kv_heads + head) * p.layout.head_dim + i;
  return p.rows_bfloat16 ? __bfloat162float(static_cast<const __nv_bfloat16*>(p.rows)[index])
                         : static_cast<const float*>(p.rows)[index];
}

// Channel i of the mean that is subtracted from the token at `position`.
__device__ inline float mean_at(const QuantizePagesParams& p, int head, std::int64_t position, int i) {
  const int d = p.layout.head_dim;
  return mean_channel(p.mean + head * d, p.rope_phases == nullptr ? nullptr : p.rope_phases + position * d, d, i);
}

template <class T, int P>
__device__ inline void encode_uniform(const QuantizePagesParams& p, const float* x, int slot, std::uint8_t* codes,
                                      std::uint8_t* page) {
  const int lane = threadIdx.x % 32, n = p.layout.quant_group;
  for (int g = 0; g < p.layout.quant_groups; ++g) {
    float part[P];
    int c[P];
#pragma unroll
    for (int j = 0; j < P; ++j) part[j] = lane + 32 * j < n ? x[g * n + lane + 32 * j] : 0.0f;
    const row::Range range = row::range_of(part, n);
    const uniform::Params pair = p.encoder == QuantizeEncoder::kMinMax
                                     ? uniform::encode_minmax<T>(part, range, c)
                                     : uniform::encode_search<T>(part, n, range, p.value_side, c);
#pragma unroll
    for (int j = 0; j < P; ++j) {
      if (lane + 32 * j < n) codes[g * n + lane + 32 * j] = static_cast<std::uint8_t>(c[j]);
    }
    if (lane == 0) {
      *reinterpret_cast<std::uint32_t*>(page + p.layout.param_byte(slot, g)) =
          pair.scale | static_cast<std::uint32_t>(pair.zero) << 16;
    }
  }
}

// refined: the last block of x becomes what the first loses.
template <int P>
__device__ inline void encode_blocks(const QuantizePagesParams& p, int head, float* x, int slot, std::uint8_t* codes,
                                     std::uint8_t* page, bool refined) {
  constexpr int kPart = (P + 3) / 4;
  const int lane = threadIdx.x % 32;
  for (int b = 0; b < p.layout.planes; ++b) {
    const PlaneLayout& plane = p.layout.plane[b];
    const int n = plane.channels;
    float part[kPart];
    int c[kPart];
#pragma unroll
    for (int j = 0; j < kPart; ++j) part[j] = lane + 32 * j < n ? x[plane.first_channel + lane + 32 * j] : 0.0f;
    const int e = blocks::encode_band(part, n, plane.width, p.sigma[head * 4 + plane.sigma], p.value_side,
                                      p.encoder != QuantizeEncoder::kMinMax, c);
#pragma unroll
    for (int j = 0; j < kPart; ++j) {
      if (lane + 32 * j < n) codes[plane.first_channel + lane + 32 * j] = static_cast<std::uint8_t>(c[j]);
    }
    if (lane == 0) page[p.layout.param_byte(slot, b)] = static_cast<std::uint8_t>(e);
    if (!refined || b > 0) continue;
    const float scale = blocks::scale_value(e, p.sigma[head * 4]);
#pragma unroll
    for (int j = 0; j < kPart; ++j) {
      const float decoded = (static_cast<float>(2 * c[j] + 1 - (1 << plane.width)) * 0.5f) * scale;
      if (lane + 32 * j < n) x[3 * n + lane + 32 * j] = part[j] - decoded;
    }
  }
}

// A warp encodes one token; its clipped row returns to shared memory because groups divide it differently.
template <int P>
__device__ inline void encode(const QuantizePagesParams& p, int head, int position, int slot, float* x,
                              std::uint8_t* codes, std::uint8_t* page, bool refined = false) {
  const int lane = threadIdx.x % 32, d = p.layout.head_dim;
  float value[P];
#pragma unroll
  for (int j = 0; j < P; ++j) value[j] = lane + 32 * j < d ? x[lane + 32 * j] : 0.0f;
  if (!(row::largest_magnitude(value, d) < __uint_as_float(0x7f800000u))) {
    if (lane == 0) atomicMin(p.bad, position * p.kv_heads + head);
#pragma unroll
    for (int j = 0; j < P; ++j) value[j] = 0.0f;
  }
  row::clip_row(value, d, p.clip[head]);
#pragma unroll
  for (int j = 0; j < P; ++j) {
    if (lane + 32 * j < d) x[lane + 32 * j] = value[j];
  }
  __syncwarp();
  switch (p.layout.params) {
    case ParamKind::kFloat16Pair:
      return encode_uniform<uniform::Float16, P>(p, x, slot, codes, page);
    case ParamKind::kBFloat16Pair:
      return encode_uniform<uniform::BFloat16, P>(p, x, slot, codes, page);
    case ParamKind::kScaleByte:
      return encode_blocks<P>(p, head, x, slot, codes, page, refined);
  }
}

}  // namespace oscar::kernels
