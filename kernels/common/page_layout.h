// A page of the quantized cache: kPageTokens tokens of one (layer, KV head), keys and values, contiguous bytes. Plain
// data and constexpr functions, shared by the CPU cache and the CUDA kernels.
//
// Sections, each a multiple of 16 bytes, in this order:
//   key planes | key parameters | value planes | value parameters
// A plane holds the codes of consecutive channels with one width w. `uniform` has one plane (all d channels, w = 2).
// `blocks` has one plane for each block (a quarter of the channels) with w > 0. n channels take 8 n w bytes.
// Parameters: uniform, 4 bytes at (g * 64 + token) for group g of quant_group channels: s then z, 16 bits each. blocks,
// 1 byte at (plane * 64 + token).
//
// d = 128                uniform: bytes     blocks 4-2-1-1: bytes
//   key planes            0    2048          0 (1024, 512, 256, 256)
//   key parameters     2048     256       2048 (4 x 64)
//   value planes       2304    2048       2304
//   value parameters   4352     256       4352
//   page               4608               4608
//
// Inside a plane, codes are in the order of the operands of a 16 x 8 x 16 tensor-core step, so that a warp expands them
// only with masks. Lane = 4 g + t, g = 0..7, t = 0..3. A 32-bit word (little-endian) has two halves h = 0, 1 of 16 / w
// fields: field j of half h is at bit 16 h + w j. A lane's fields of a full page are numbered p = 0, 1, ...:
//   keys:   token 8 a + g, channel 16 k + 8 b + 2 t + h:   p = a n / 8 + 2 k + b
//   values: token 16 a + 8 b + 2 t + h, channel 16 k + 8 r + g:   p = a n / 8 + 2 k + r, words of b = 0 and 1 apart:
//           the two token halves of a channel have the same j, so one power of two scales a row of the accumulator
// j = p mod (16 / w), word W = p / (16 / w) (values: 2 W + b). Words of all lanes: W / V, lane, W mod V, with V = 4, 2
// or 1 words for a vector load, so a strip of 16 tokens is contiguous. For d = 128 uniform, a strip of keys or of
// values is 512 bytes, 16 per lane. If n is not a multiple of 16, a plane is stored plainly: bit (token n + channel) w.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define OSCAR_HOST_DEVICE __host__ __device__
#else
#define OSCAR_HOST_DEVICE
#endif

namespace oscar {

constexpr int kPageTokens = 64;
constexpr int kMaxPlanes = 4;

// The codes of consecutive channels with one width.
struct PlaneLayout {
  std::int32_t first_channel = 0;
  std::int32_t channels = 0;  // n
  std::int32_t width = 0;     // w: 1, 2 or 4 bits
  std::int32_t offset = 0;    // bytes from the start of the page
  std::int32_t sigma = 0;     // blocks: index of the plane's block

  OSCAR_HOST_DEVICE constexpr std::int32_t bytes() const { return kPageTokens / 8 * channels * width; }
  OSCAR_HOST_DEVICE constexpr bool fragment_order() const { return channels % 16 == 0; }
  OSCAR_HOST_DEVICE constexpr std::int32_t vector_words() const {  // V
    return channels * width % 256 == 0 ? 4 : (channels * width % 128 == 0 ? 2 : 1);
  }
  // Position of the lowest bit of a code, counted from the start of the plane; channel: within the plane.
  OSCAR_HOST_DEVICE constexpr std::int32_t key_bit(std::int32_t token, std::int32_t channel) const {
    if (!fragment_order()) return (token * channels + channel) * width;
    const std::int32_t lane = 4 * (token % 8) + channel % 8 / 2;
    const std::int32_t p = token / 8 * (channels / 8) + channel / 8;
    return field_bit(p / (16 / width), lane, channel % 2, p % (16 / width));
  }
  OSCAR_HOST_DEVICE constexpr std::int32_t value_bit(std::int32_t token, std::int32_t channel) const {
    if (!fragment_order()) return (token * channels + channel) * width;
    const std::int32_t lane = 4 * (channel % 8) + token % 8 / 2, half = token % 16 / 8;
    const std::int32_t p = token / 16 * (channels / 8) + channel / 8, fields = 16 / width;
    if (channels * width % 32 == 0) return field_bit(2 * (p / fields) + half, lane, token % 2, p % fields);
    const std::int32_t q = half * (channels / 2) + p;  // odd number of words: the token halves follow each other
    return field_bit(q / fields, lane, token % 2, q % fields);
  }

 private:
  OSCAR_HOST_DEVICE constexpr std::int32_t field_bit(std::int32_t word, std::int32_t lane, std::int32_t half,
                                                     std::int32_t field) const {
    const std::int32_t v = vector_words();
    return 32 * (word / v * 32 * v + lane * v + word % v) + 16 * half + width * field;
  }
};

enum class ParamKind : std::int32_t { kFloat16Pair, kBFloat16Pair, kScaleByte };

// Keys or values of a page.
struct SideLayout {
  std::int32_t head_dim = 0;  // d
  std::int32_t planes = 0;
  PlaneLayout plane[kMaxPlanes];
  ParamKind params = ParamKind::kFloat16Pair;
  std::int32_t quant_group = 0;   // channels that share a pair; unused for kScaleByte
  std::int32_t quant_groups = 0;  // pairs per token; kScaleByte: number of planes
  std::int32_t param_offset = 0;  // bytes from the start of the page

  OSCAR_HOST_DEVICE constexpr std::int32_t param_size() const { return params == ParamKind::kScaleByte ? 1 : 4; }
  OSCAR_HOST_DEVICE constexpr std::int32_t param_bytes() const { return quant_groups * param_size() * kPageTokens; }
  OSCAR_HOST_DEVICE constexpr std::int32_t end() const { return param_offset + param_bytes(); }
  // Byte of one token's parameters, for a quantization group (uniform) or a plane (blocks).
  OSCAR_HOST_DEVICE constexpr std::int32_t param_byte(std::int32_t token, std::int32_t index) const {
    return param_offset + (index * kPageTokens + token) * param_size();
  }
};

struct PageLayout {
  SideLayout key, value;
  OSCAR_HOST_DEVICE constexpr std::int32_t bytes() const { return value.end(); }
};

constexpr SideLayout uniform_side(std::int32_t head_dim, std::int32_t quant_group, bool bfloat16_params,
                                  std::int32_t offset) {
  SideLayout side;
  side.head_dim = head_dim;
  side.planes = 1;
  side.plane[0] = {0, head_dim, 2, offset, 0};
  side.params = bfloat16_params ? ParamKind::kBFloat16Pair : ParamKind::kFloat16Pair;
  side.quant_group = quant_group;
  side.quant_groups = head_dim / quant_group;
  side.param_offset = offset + side.plane[0].bytes();
  return side;
}

// widths: [4] of {0, 1, 2, 4}.
constexpr SideLayout band_side(std::int32_t head_dim, const std::uint8_t* widths, std::int32_t offset) {
  SideLayout side;
  side.head_dim = head_dim;
  side.params = ParamKind::kScaleByte;
  for (std::int32_t b = 0; b < 4; ++b) {
    if (widths[b] == 0) continue;
    side.plane[side.planes] = {b * (head_dim / 4), head_dim / 4, widths[b], offset, b};
    offset += side.plane[side.planes].bytes();
    ++side.planes;
  }
  side.quant_groups = side.planes;
  side.param_offset = offset;
  return side;
}

namespace page_layout_check {
constexpr SideLayout kKey = uniform_side(128, 128, false, 0), kValue = uniform_side(128, 128, false, kKey.end());
static_assert(kKey.param_offset == 2048 && kValue.plane[0].offset == 2304 && kValue.param_offset == 4352);
static_assert(PageLayout{kKey, kValue}.bytes() == 4608);
constexpr std::uint8_t kWidths[4] = {4, 2, 1, 1};
constexpr SideLayout kBandKey = band_side(128, kWidths, 0), kBandValue = band_side(128, kWidths, kBandKey.end());
static_assert(kBandKey.plane[1].offset == 1024 && kBandKey.plane[3].offset == 1792 && kBandKey.param_offset == 2048);
static_assert(PageLayout{kBandKey, kBandValue}.bytes() == 4608);
// A lane's 16 bytes of the first key strip: token 0 in words 0 and 1, token 8 in words 2 and 3.
static_assert(kKey.plane[0].key_bit(0, 0) == 0 && kKey.plane[0].key_bit(0, 1) == 16 &&
              kKey.plane[0].key_bit(0, 8) == 2 && kKey.plane[0].key_bit(0, 64) == 32 &&
              kKey.plane[0].key_bit(8, 0) == 64 && kKey.plane[0].key_bit(0, 2) == 128 &&
              kKey.plane[0].key_bit(1, 0) == 512 && kKey.plane[0].key_bit(16, 0) == 4096);
// Values: tokens 0 and 1 share a word's halves, token 8 is in the next word at the same field.
static_assert(kValue.plane[0].value_bit(0, 0) == 0 && kValue.plane[0].value_bit(1, 0) == 16 &&
              kValue.plane[0].value_bit(8, 0) == 32 && kValue.plane[0].value_bit(0, 8) == 2 &&
              kValue.plane[0].value_bit(0, 64) == 64 && kValue.plane[0].value_bit(2, 0) == 128 &&
              kValue.plane[0].value_bit(0, 1) == 512 && kValue.plane[0].value_bit(16, 0) == 4096);
}  // namespace page_layout_check

}  // namespace oscar
