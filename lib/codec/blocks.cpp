#include "codec/layouts.h"

#include "codec/row_math.h"
#include "kernels/common/scale_grid.h"

namespace oscar::blocks {
namespace {

using row_math::fixed_dot;

constexpr ScaleGrid kGrid = make_scale_grid();

constexpr float power_of_two(int exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}

// Codes of one block with step = 2 f max|x| / (2^w - 1): c = clamp(floor(x / step) + 2^(w-1), 0, 2^w - 1). The floor is
// taken after the sum (x (1 / step) + 2^(w-1), clamped, truncated); w = 1: c = [x >= 0]. odd: 2 l = 2c + 1 - 2^w.
// Returns sum of x odd; *squares: sum of odd^2.
OSCAR_INLINE float try_fraction(const float* x, int n, int width, float fraction, float largest, float* odd,
                                std::int32_t* squares) {
  const int levels = 1 << width;
  const float inverse = 1.0f / ((2.0f * fraction * largest) / static_cast<float>(levels - 1));
  const float half = static_cast<float>(levels / 2), top = static_cast<float>(levels - 1);
  if (width == 1) {
    for (int i = 0; i < n; ++i) odd[i] = x[i] >= 0.0f ? 1.0f : 0.0f;
  } else {
    for (int i = 0; i < n; ++i) odd[i] = row_math::clamp(x[i] * inverse + half, top);
  }
  std::int32_t sum = 0;
  for (int i = 0; i < n; ++i) {
    const std::int32_t o = 2 * static_cast<std::int32_t>(odd[i]) + 1 - levels;
    odd[i] = static_cast<float>(o);
    sum += o * o;
  }
  *squares = sum;
  return fixed_dot(x, odd, n);
}

struct Best {
  float dot = 0.0f, score = 0.0f;
  std::int32_t squares = 1;
};

OSCAR_INLINE Best search(const float* x, int n, int width, float largest, Encoder encoder, float* levels) {
  constexpr float kFractions2[] = {1.0f,          0.9214285714f, 0.8428571429f, 0.7642857143f,
                                   0.6857142857f, 0.6071428571f, 0.5285714286f, 0.45f};
  constexpr float kFractions4[] = {1.0f,          0.9428571429f, 0.8857142857f, 0.8285714286f,
                                   0.7714285714f, 0.7142857143f, 0.6571428571f, 0.6f};
  const int tries = encoder != Encoder::kMinMax && width > 1 ? 8 : 1;
  float odd[2][kMaxHeadDim / kBands];
  int kept = 0;
  Best best;
  for (int k = 0; k < tries; ++k) {
    std::int32_t squares = 0;
    const float fraction = width == 4 ? kFractions4[k] : kFractions2[k];
    const float dot = try_fraction(x, n, width, fraction, largest, odd[1 - kept], &squares);
    const float score = (dot * dot) / static_cast<float>(squares);
    if (k == 0 || score > best.score) best = {dot, score, squares}, kept = 1 - kept;
  }
  std::memcpy(levels, odd[kept], static_cast<std::size_t>(n) * sizeof(float));
  return best;
}

OSCAR_INLINE float level(std::uint8_t code, int width) {
  return static_cast<float>(2 * code + 1 - (1 << width)) * 0.5f;
}

// Writes the codes of a block with w > 0 and returns its scale byte. If the squares of a block leave the range of
// floats (all zero, or magnitudes beyond 2^+-40), it takes the smallest or the largest scale byte.
OSCAR_INLINE std::int8_t encode_band(const float* x, int n, int width, float sigma, Side side, Encoder encoder,
                                     std::uint8_t* codes) {
  const float largest = row_math::largest_magnitude(x, n);
  if (!(largest >= 0x1p-40f)) {
    std::memset(codes, 1 << (width - 1), static_cast<std::size_t>(n));
    return -128;
  }
  if (!(largest <= 0x1p40f)) {
    for (int i = 0; i < n; ++i) codes[i] = static_cast<std::uint8_t>(x[i] < 0.0f ? 0 : (1 << width) - 1);
    return 127;
  }
  float odd[kMaxHeadDim / kBands];
  const Best best = search(x, n, width, largest, encoder, odd);
  for (int i = 0; i < n; ++i) {
    codes[i] = static_cast<std::uint8_t>((static_cast<std::int32_t>(odd[i]) + (1 << width) - 1) / 2);
  }
  const float scale = side == Side::kKey ? (2.0f * fixed_dot(x, x, n)) / best.dot
                                         : (2.0f * best.dot) / static_cast<float>(best.squares);
  return scale_byte(scale / sigma);
}

OSCAR_VECTOR_CLONES std::int64_t encode_all(const RowCodec& codec, const float* rows, std::int64_t n,
                                            std::int64_t stride, std::uint8_t* codes, std::uint8_t* params) {
  const int d = codec.code.head_dim, channels = codec.code.band_channels(), scales = codec.code.param_bytes();
  float row[kMaxHeadDim];
  std::uint32_t scratch[kMaxHeadDim];
  for (std::int64_t r = 0; r < n; ++r) {
    if (!row_math::load_clipped(rows + r * stride, d, codec.clip, scratch, row)) return r;
    std::uint8_t* out = params + r * scales;
    for (int b = 0; b < kBands; ++b) {
      const int width = codec.code.widths[static_cast<std::size_t>(b)];
      std::uint8_t* q = codes + r * d + b * channels;
      if (width == 0) {
        std::memset(q, 0, static_cast<std::size_t>(channels));
        continue;
      }
      const float sigma = codec.sigma[static_cast<std::size_t>(b)];
      float* x = row + b * channels;
      const std::int8_t e = encode_band(x, channels, width, sigma, codec.side, codec.encoder, q);
      *out++ = static_cast<std::uint8_t>(e);
      if (!codec.code.refined || b > 0) continue;
      const float s = scale_value(e, sigma);  // what the block loses takes the place of the last one
      for (int i = 0; i < channels; ++i) row[(kBands - 1) * channels + i] = x[i] - level(q[i], width) * s;
    }
  }
  return -1;
}

}  // namespace

std::int8_t scale_byte(float ratio) {
  if (!(ratio >= 0x1p-5f)) return -128;  // NaN, or below the grid
  if (ratio >= 0x1p5f) return 127;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(ratio);
  const int exponent = static_cast<int>(bits >> 23) - 127;
  const float mantissa = std::bit_cast<float>((bits & 0x7fffffu) | 0x3f800000u);
  int e = 32 * exponent;
  for (const float boundary : kGrid.boundary) e += mantissa >= boundary ? 1 : 0;
  return static_cast<std::int8_t>(e < -128 ? -128 : (e > 127 ? 127 : e));
}

float scale_value(std::int8_t e, float sigma) {
  const int steps = e + 128;  // 0..255; 2^(e/32) = 2^(steps % 32 / 32) 2^(steps / 32 - 4)
  return sigma * kGrid.value[steps % 32] * power_of_two(steps / 32 - 4);
}

bool encode_rows(const RowCodec& codec, const float* rows, std::int64_t n, std::int64_t stride, std::uint8_t* codes,
                 std::uint8_t* params, std::int64_t* bad_row) {
  *bad_row = encode_all(codec, rows, n, stride, codes, params);
  return *bad_row < 0;
}

void decode_rows(const RowCodec& codec, const std::uint8_t* codes, const std::uint8_t* params, std::int64_t n,
                 float* rows, std::int64_t stride) {
  const int d = codec.code.head_dim, channels = codec.code.band_channels(), scales = codec.code.param_bytes();
  for (std::int64_t r = 0; r < n; ++r) {
    const std::uint8_t* p = params + r * scales;
    for (int b = 0; b < kBands; ++b) {
      const int width = codec.code.widths[static_cast<std::size_t>(b)];
      const std::uint8_t* q = codes + r * d + b * channels;
      float* x = rows + r * stride + b * channels;
      const float s =
          width == 0 ? 0.0f : scale_value(static_cast<std::int8_t>(*p++), codec.sigma[static_cast<std::size_t>(b)]);
      if (codec.code.refined && b == kBands - 1) {
        for (int i = 0; i < channels; ++i) rows[r * stride + i] += level(q[i], width) * s, x[i] = 0.0f;
        continue;
      }
      for (int i = 0; i < channels; ++i) x[i] = width == 0 ? 0.0f : level(q[i], width) * s;
    }
  }
}

}  // namespace oscar::blocks
