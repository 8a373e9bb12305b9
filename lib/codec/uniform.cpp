#include "codec/layouts.h"

#include "codec/row_math.h"
#include "layout/float16.h"

namespace oscar::uniform {
namespace {

using row_math::fixed_dot;
using row_math::fixed_sum;
using row_math::Range;

// Limits that keep stored parameters finite and x / s + z exact enough. FP16 holds no scale below 2^-24 or above 65504.
// If a group's offset exceeds kMaxOffset scales, its variation is below the resolution of the stored offset, and it is
// written as a constant.
constexpr float kMaxOffset = 2048.0f;

template <ParamType kType>
struct Stored;
template <>
struct Stored<ParamType::kFloat16> {
  static constexpr float kMinScale = 0x1p-24f, kMaxScale = 65504.0f;
  static OSCAR_INLINE std::uint16_t bits(float v) { return float16_bits(v); }
  static OSCAR_INLINE float value(std::uint16_t b) { return float16_value(b); }
};
template <>
struct Stored<ParamType::kBFloat16> {
  static constexpr float kMinScale = 0x1p-100f, kMaxScale = 0x1p96f;
  static OSCAR_INLINE std::uint16_t bits(float v) { return bfloat16_bits(v); }
  static OSCAR_INLINE float value(std::uint16_t b) { return bfloat16_value(b); }
};

struct Params {
  std::uint16_t scale = 0, zero = 0;
};

template <ParamType kType>
OSCAR_INLINE std::uint16_t stored_scale(float scale) {
  using T = Stored<kType>;
  const std::uint16_t bits = T::bits(scale < T::kMaxScale ? scale : T::kMaxScale);
  return T::value(bits) < T::kMinScale ? T::bits(T::kMinScale) : bits;
}

// All codes are 0 and xhat is the middle of the range, exact if the 16-bit type can represent it.
template <ParamType kType>
OSCAR_INLINE Params encode_constant(Range range, int n, std::uint8_t* codes) {
  using T = Stored<kType>;
  const float middle = 0.5f * range.low + 0.5f * range.high;
  const float magnitude = middle < 0.0f ? -middle : middle;
  std::memset(codes, 0, static_cast<std::size_t>(n));
  const float zero = magnitude < T::kMinScale ? 0.0f : (middle < 0.0f ? 1.0f : -1.0f);
  return {stored_scale<kType>(magnitude), T::bits(zero)};
}

// s = max(max - min, 1e-8) / 3, z = -min / s, q = trunc(clamp(x / s + z + 0.5, 0, 3)), with s and z as stored.
template <ParamType kType>
OSCAR_INLINE Params encode_minmax(const float* x, int n, Range range, std::uint8_t* codes) {
  using T = Stored<kType>;
  const float width = range.high - range.low;
  const std::uint16_t scale = stored_scale<kType>((width > 1e-8f ? width : 1e-8f) / 3.0f);
  const float s = T::value(scale);
  const float offset = range.low < 0.0f ? -range.low : range.low;
  if (offset > kMaxOffset * s) return encode_constant<kType>(range, n, codes);
  const std::uint16_t zero = T::bits(0.0f - range.low / s);
  const float z = T::value(zero);
  for (int i = 0; i < n; ++i) {
    codes[i] = static_cast<std::uint8_t>(static_cast<std::int32_t>(row_math::clamp(x[i] / s + z + 0.5f, 3.0f)));
  }
  return {scale, zero};
}

// Codes (as floats) of the range shrunk about its middle by `fraction`, and their sums: y c, c, and c^2.
struct Candidate {
  float dot = 0.0f;
  std::int32_t sum = 0, squares = 0;
};

OSCAR_INLINE Candidate try_fraction(const float* x, const float* y, int n, Range range, float fraction, float* levels) {
  const float width = range.high - range.low;
  const float middle = 0.5f * range.low + 0.5f * range.high;
  const float low = middle - fraction * (0.5f * width);
  const float inverse = 1.0f / ((fraction * width) / 3.0f);
  std::int32_t sum = 0, squares = 0;
  for (int i = 0; i < n; ++i) levels[i] = row_math::clamp((x[i] - low) * inverse + 0.5f, 3.0f);
  for (int i = 0; i < n; ++i) {
    const std::int32_t c = static_cast<std::int32_t>(levels[i]);
    levels[i] = static_cast<float>(c);
    sum += c;
    squares += c * c;
  }
  return {fixed_dot(y, levels, n), sum, squares};
}

// Tries ten fractions; the codes with the best cosine to the centered row win. Then the scale is set for them: keys
// without bias, values by least squares, z such that the mean is preserved. Rows outside the safe range of squares use
// min/max.
template <ParamType kType>
OSCAR_INLINE Params encode_search(const float* x, int n, Range range, Side side, std::uint8_t* codes) {
  using T = Stored<kType>;
  constexpr float kFractions[] = {1.0f, 0.95f, 0.9f, 0.85f, 0.8f, 0.75f, 0.7f, 0.65f, 0.6f, 0.55f};
  const float width = range.high - range.low;
  if (!(width >= 0x1p-40f && width <= 0x1p40f)) return encode_minmax<kType>(x, n, range, codes);

  const float count = static_cast<float>(n);
  const float mean = fixed_sum(x, n) / count;
  float y[kMaxHeadDim], levels[2][kMaxHeadDim];
  for (int i = 0; i < n; ++i) y[i] = x[i] - mean;
  const float energy = fixed_dot(y, y, n);

  Candidate best;
  float best_score = 0.0f, best_spread = 0.0f;
  int best_buffer = 0;
  for (const float fraction : kFractions) {
    const Candidate c = try_fraction(x, y, n, range, fraction, levels[1 - best_buffer]);
    const float spread = static_cast<float>(n * c.squares - c.sum * c.sum);  // n sum of (c - mean c)^2, exact
    if (!(c.dot > 0.0f && spread > 0.0f)) continue;
    const float score = (c.dot * c.dot) / spread;
    if (score > best_score) best_score = score, best_spread = spread, best = c, best_buffer = 1 - best_buffer;
  }
  if (!(best_score > 0.0f)) return encode_minmax<kType>(x, n, range, codes);

  const float ideal = side == Side::kKey ? energy / best.dot : (best.dot * count) / best_spread;
  const float level = static_cast<float>(best.sum) / count;  // mean of the codes
  for (int i = 0; i < n; ++i) codes[i] = static_cast<std::uint8_t>(static_cast<std::int32_t>(levels[best_buffer][i]));
  const std::uint16_t scale = stored_scale<kType>(ideal);
  const float s = T::value(scale);
  if ((mean < 0.0f ? -mean : mean) > kMaxOffset * s) return encode_constant<kType>(range, n, codes);
  return {scale, T::bits(level - mean / s)};
}

OSCAR_INLINE void store16(std::uint8_t* bytes, std::uint16_t v) {
  bytes[0] = static_cast<std::uint8_t>(v), bytes[1] = static_cast<std::uint8_t>(v >> 8);
}
OSCAR_INLINE std::uint16_t load16(const std::uint8_t* bytes) {
  return static_cast<std::uint16_t>(bytes[0] | bytes[1] << 8);
}

template <ParamType kType, Encoder kEncoder>
OSCAR_INLINE std::int64_t encode_all(const RowCodec& codec, const float* rows, std::int64_t n, std::int64_t stride,
                                     std::uint8_t* codes, std::uint8_t* params) {
  const int d = codec.code.head_dim, group = codec.code.quant_group, groups = codec.code.quant_groups();
  float row[kMaxHeadDim];
  std::uint32_t scratch[kMaxHeadDim];
  for (std::int64_t r = 0; r < n; ++r) {
    if (!row_math::load_clipped(rows + r * stride, d, codec.clip, scratch, row)) return r;
    for (int g = 0; g < groups; ++g) {
      const float* x = row + g * group;
      std::uint8_t* q = codes + r * d + g * group;
      const Range range = row_math::range_of(x, group);
      const Params p = kEncoder == Encoder::kMinMax ? encode_minmax<kType>(x, group, range, q)
                                                    : encode_search<kType>(x, group, range, codec.side, q);
      std::uint8_t* out = params + (r * groups + g) * 4;
      store16(out, p.scale);
      store16(out + 2, p.zero);
    }
  }
  return -1;
}

// One set of clones for each encoder and parameter type.
OSCAR_VECTOR_CLONES std::int64_t minmax_float16(const RowCodec& c, const float* x, std::int64_t n, std::int64_t stride,
                                                std::uint8_t* codes, std::uint8_t* params) {
  return encode_all<ParamType::kFloat16, Encoder::kMinMax>(c, x, n, stride, codes, params);
}
OSCAR_VECTOR_CLONES std::int64_t minmax_bfloat16(const RowCodec& c, const float* x, std::int64_t n, std::int64_t stride,
                                                 std::uint8_t* codes, std::uint8_t* params) {
  return encode_all<ParamType::kBFloat16, Encoder::kMinMax>(c, x, n, stride, codes, params);
}
OSCAR_VECTOR_CLONES std::int64_t search_float16(const RowCodec& c, const float* x, std::int64_t n, std::int64_t stride,
                                                std::uint8_t* codes, std::uint8_t* params) {
  return encode_all<ParamType::kFloat16, Encoder::kSearch>(c, x, n, stride, codes, params);
}
OSCAR_VECTOR_CLONES std::int64_t search_bfloat16(const RowCodec& c, const float* x, std::int64_t n, std::int64_t stride,
                                                 std::uint8_t* codes, std::uint8_t* params) {
  return encode_all<ParamType::kBFloat16, Encoder::kSearch>(c, x, n, stride, codes, params);
}
OSCAR_VECTOR_CLONES void decode_group(const std::uint8_t* codes, float s, float z, int n, float* x) {
  for (int i = 0; i < n; ++i) x[i] = (static_cast<float>(codes[i]) - z) * s;
}

}  // namespace

bool encode_rows(const RowCodec& codec, const float* rows, std::int64_t n, std::int64_t stride, std::uint8_t* codes,
                 std::uint8_t* params, std::int64_t* bad_row) {
  const bool half = codec.code.params == ParamType::kFloat16;
  const auto run = codec.encoder == Encoder::kMinMax ? (half ? minmax_float16 : minmax_bfloat16)
                                                     : (half ? search_float16 : search_bfloat16);
  *bad_row = run(codec, rows, n, stride, codes, params);
  return *bad_row < 0;
}

void decode_rows(const RowCodec& codec, const std::uint8_t* codes, const std::uint8_t* params, std::int64_t n,
                 float* rows, std::int64_t stride) {
  const RowCode& code = codec.code;
  const int d = code.head_dim, group = code.quant_group, groups = code.quant_groups();
  const bool half = code.params == ParamType::kFloat16;
  for (std::int64_t r = 0; r < n; ++r) {
    for (int g = 0; g < groups; ++g) {
      const std::uint8_t* p = params + (r * groups + g) * 4;
      const float s = half ? float16_value(load16(p)) : bfloat16_value(load16(p));
      const float z = half ? float16_value(load16(p + 2)) : bfloat16_value(load16(p + 2));
      decode_group(codes + r * d + g * group, s, z, group, rows + r * stride + g * group);
    }
  }
}

}  // namespace oscar::uniform
