// The work of a warp for one full page of 128 tokens: scores from codes of channels, sums from codes of tokens.
//
// A line holds 128 tokens of a channel (keys) or D channels of a token (values). Field f of byte i of a line of n codes
// is code i + f n / 4. So two bytes side by side in a register and one mask give a pair of FP16 subnormals c 4^f 2^-24:
// operand A of the MMA without a shift. A lane (g = lane / 4, t = lane % 4) takes bytes of four lines: keys of channels
// 16 k + 4 j + t, values of the tokens that the transposed weights require.
#pragma once

#include <cstdint>

#include "kernels/decode/mma.cuh"

namespace oscar::kernels {

inline constexpr int kLinePageTokens = 128;

__device__ __forceinline__ std::uint32_t shared_word(const std::uint8_t* p) {
  return *reinterpret_cast<const std::uint32_t*>(p);
}

// The (scale, offset) pairs of a line, G of them.
template <int G>
struct LineParams {
  std::uint32_t x[G];
  __device__ __forceinline__ void load(const std::uint8_t* params, int line) {
    const std::uint8_t* at = params + line * (4 * G);
    if constexpr (G == 4) {
      const uint4 four = *reinterpret_cast<const uint4*>(at);
      x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
    } else if constexpr (G == 2) {
      const uint2 two = *reinterpret_cast<const uint2*>(at);
      x[0] = two.x, x[1] = two.y;
    } else {
      x[0] = shared_word(at);
    }
  }
};

// Scales of two lines side by side.
__device__ __forceinline__ std::uint32_t scale_pair(std::uint32_t first, std::uint32_t second) {
  return __byte_perm(first, second, 0x5410);
}
__device__ __forceinline__ std::uint32_t offset_pair(std::uint32_t first, std::uint32_t second) {
  return __byte_perm(first, second, 0x7632);
}

// Byte `byte` of two words, one in each half; later masks remove the bytes above them.
__device__ __forceinline__ std::uint32_t byte_pair(std::uint32_t first, std::uint32_t second, int byte) {
  return __byte_perm(first, second, 0x4400u + 0x1111u * static_cast<unsigned>(byte));
}

// The softmax state of a warp over 8 query heads. A lane has heads 2t and 2t + 1.
template <int D>
struct LineState {
  static constexpr int kPairs = D / 64;  // byte pairs of a lane in a value line
  float m[2], l[2];
  float o[4][kPairs][4];  // [field][pair of bytes][first byte: two heads, second byte: two heads], code units
  float zeros[4];         // row f: the sum from the offsets of field f

  __device__ __forceinline__ void clear() {
    m[0] = m[1] = -1e30f, l[0] = l[1] = 0.0f;
#pragma unroll
    for (int c = 0; c < 4; ++c) zeros[c] = 0.0f;
#pragma unroll
    for (int f = 0; f < 4; ++f)
#pragma unroll
      for (int p = 0; p < kPairs; ++p)
#pragma unroll
        for (int c = 0; c < 4; ++c) o[f][p][c] = 0.0f;
  }
};

// A lane's tokens of a page: 32 f + 4 g + line_byte(b, g), b = 0..3. The rotation by g / 2 lets the lanes that read the
// values of these tokens start in different banks.
__device__ __forceinline__ int line_byte(int b, int g) { return (b + (g >> 1)) & 3; }

// scores[f][p][2 u + h]: token 32 f + 4 g + line_byte(2 p + u, g) and head 2t + h, without norm and scale. query:
// [D/16][32] pairs of FP16 as operand B, channels 16 k + 4 j + t.
template <int D, int G>
__device__ __forceinline__ void line_scores(float (&scores)[4][2][4], const std::uint8_t* page, const uint2* query,
                                            int lane) {
  const int g = lane >> 2, t = lane & 3;
  const std::uint8_t* params = page + D * (kLinePageTokens / 4);
  float offsets[4] = {0.0f, 0.0f, 0.0f, 0.0f};  // row f: from the offsets of field f
#pragma unroll
  for (int f = 0; f < 4; ++f)
#pragma unroll
    for (int p = 0; p < 2; ++p)
#pragma unroll
      for (int c = 0; c < 4; ++c) scores[f][p][c] = 0.0f;
#pragma unroll 2
  for (int k = 0; k < D / 16; ++k) {
    std::uint32_t word[4];
    LineParams<G> pair[4];
    std::uint32_t own[4];  // parameters of field g, in the lanes g < 4
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int channel = 16 * k + 4 * j + t;
      word[j] = shared_word(page + channel * (kLinePageTokens / 4) + 4 * g);
      pair[j].load(params, channel);
      own[j] = shared_word(params + (channel * G + (g & 3) * G / 4) * 4);
    }
    const uint2 q = query[32 * k + lane];
    const std::uint32_t rows[4] = {g < 4 ? offset_pair(own[0], own[1]) : 0u, 0u,
                                   g < 4 ? offset_pair(own[2], own[3]) : 0u, 0u};
    mma_f16(offsets, rows, q.x, q.y);
    std::uint32_t low[4], high[4];
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      low[b] = byte_pair(word[0], word[1], line_byte(b, g));
      high[b] = byte_pair(word[2], word[3], line_byte(b, g));
    }
#pragma unroll
    for (int f = 0; f < 4; ++f) {
      const int quant_group = f * G / 4;
      const std::uint32_t b0 = multiply_f16(q.x, scale_pair(pair[0].x[quant_group], pair[1].x[quant_group])),
                          b1 = multiply_f16(q.y, scale_pair(pair[2].x[quant_group], pair[3].x[quant_group]));
      const std::uint32_t mask = 0x00030003u << (2 * f);
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        const std::uint32_t codes[4] = {low[2 * p] & mask, low[2 * p + 1] & mask, high[2 * p] & mask,
                                        high[2 * p + 1] & mask};
        mma_f16(scores[f][p], codes, b0, b1);
      }
    }
  }
#pragma unroll
  for (int f = 0; f < 4; ++f) {
    const float unit = static_cast<float>(1 << (24 - 2 * f));
    const float add[2] = {__shfl_sync(0xffffffffu, offsets[0], 4 * f + t),
                          __shfl_sync(0xffffffffu, offsets[1], 4 * f + t)};
#pragma unroll
    for (int p = 0; p < 2; ++p)
#pragma unroll
      for (int c = 0; c < 4; ++c) scores[f][p][c] = fmaf(scores[f][p][c], unit, add[c & 1]);
  }
}

// Scores in units of log2 -> weights in place; moves the reference m.
template <int D>
__device__ __forceinline__ void line_softmax(LineState<D>& state, float (&s)[4][2][4]) {
  float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (int f = 0; f < 4; ++f)
#pragma unroll
    for (int p = 0; p < 2; ++p)
#pragma unroll
      for (int c = 0; c < 4; ++c) top[c & 1] = fmaxf(top[c & 1], s[f][p][c]);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int offset = 4; offset < 32; offset *= 2) top[h] = fmaxf(top[h], __shfl_xor_sync(0xffffffffu, top[h], offset));
    // Weights up to 2^4: leaves room in FP16 for small weights, and for scales up to 4,000.
    top[h] = fmaxf(state.m[h], top[h] - 4.0f);
    const float factor = exp2_approx(state.m[h] - top[h]);
    state.m[h] = top[h];
    state.l[h] *= factor;
    state.zeros[h] *= factor;
#pragma unroll
    for (int f = 0; f < 4; ++f)
#pragma unroll
      for (int p = 0; p < LineState<D>::kPairs; ++p) state.o[f][p][h] *= factor, state.o[f][p][h + 2] *= factor;
  }
#pragma unroll
  for (int f = 0; f < 4; ++f)
#pragma unroll
    for (int p = 0; p < 2; ++p)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        s[f][p][c] = exp2_approx(s[f][p][c] - top[c & 1]);
        state.l[c & 1] += s[f][p][c];
      }
}

// o += weights values. A lane takes bytes D/32 g .. of tokens 32 f + 8 t + {0, 4} + line_byte(2 p + u, 2 t).
template <int D, int G>
__device__ __forceinline__ void line_accumulate(LineState<D>& state, const float (&weights)[4][2][4],
                                                const std::uint8_t* page, int lane) {
  const int g = lane >> 2, t = lane & 3;
  const std::uint8_t* params = page + kLinePageTokens * (D / 4);
#pragma unroll
  for (int f = 0; f < 4; ++f)
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      const std::uint32_t b0 = transpose_8x8(pack_f16(weights[f][p][0], weights[f][p][1])),
                          b1 = transpose_8x8(pack_f16(weights[f][p][2], weights[f][p][3]));
      std::uint32_t word[4], own[4];
      LineParams<G> pair[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int token = 32 * f + 8 * t + 4 * (j & 1) + line_byte(2 * p + (j >> 1), 2 * t);
        const std::uint8_t* line = page + token * (D / 4);
        if constexpr (D == 128) {
          word[j] = shared_word(line + 4 * g);
        } else {
          word[j] = *reinterpret_cast<const std::uint16_t*>(line + 2 * g);
        }
        pair[j].load(params, token);
        own[j] = shared_word(params + (token * G + (g & 3) * G / 4) * 4);
      }
      const std::uint32_t rows[4] = {g < 4 ? offset_pair(own[0], own[1]) : 0u, 0u,
                                     g < 4 ? offset_pair(own[2], own[3]) : 0u, 0u};
      mma_f16(state.zeros, rows, b0, b1);
      std::uint32_t low[D / 32], high[D / 32];
#pragma unroll
      for (int b = 0; b < D / 32; ++b) {
        low[b] = byte_pair(word[0], word[1], b);
        high[b] = byte_pair(word[2], word[3], b);
      }
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        const int quant_group = v * G / 4;
        const std::uint32_t w0 = multiply_f16(b0, scale_pair(pair[0].x[quant_group], pair[1].x[quant_group])),
                            w1 = multiply_f16(b1, scale_pair(pair[2].x[quant_group], pair[3].x[quant_group]));
        const std::uint32_t mask = 0x00030003u << (2 * v);
#pragma unroll
        for (int i = 0; i < LineState<D>::kPairs; ++i) {
          const std::uint32_t codes[4] = {low[2 * i] & mask, low[2 * i + 1] & mask, high[2 * i] & mask,
                                          high[2 * i + 1] & mask};
          mma_f16(state.o[v][i], codes, w0, w1);
        }
      }
    }
}

// Converts the accumulators to units of the output; channel D/4 f + D/32 g + 2 p + u is o[f][p][2 u + h].
template <int D>
__device__ __forceinline__ void line_finish(LineState<D>& state, int lane) {
#pragma unroll
  for (int f = 0; f < 4; ++f) {
    const float unit = static_cast<float>(1 << (24 - 2 * f));
    const float add[2] = {__shfl_sync(0xffffffffu, state.zeros[0], 4 * f + (lane & 3)),
                          __shfl_sync(0xffffffffu, state.zeros[1], 4 * f + (lane & 3))};
#pragma unroll
    for (int p = 0; p < LineState<D>::kPairs; ++p)
#pragma unroll
      for (int c = 0; c < 4; ++c) state.o[f][p][c] = fmaf(state.o[f][p][c], unit, add[c & 1]);
  }
}

}  // namespace oscar::kernels
