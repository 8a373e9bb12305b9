// How the decode kernel reads the cache pages of kernels/common/page_layout.h (uniform layout, quant_group = head_dim),
// and the layout of its BF16 window pages. Needs no CUDA headers.
//
// Fragment order (PTX ISA, m16n8k16, operand A, row-major): lane = 4 g + t (g = 0..7, t = 0..3) holds registers r =
// 0..3 with rows g + 8 (r & 1) and columns 2t + 8 (r >> 1) + {0, 1} (low, high half). Keys are A[token, channel]: D/16
// steps along the channels. Values are A[channel, token]: D/16 steps along the channels as rows. A code register is
// field f of word w of the lane. Each 16-bit half has eight two-bit fields, so (word & (0x00030003 << 2f)) is a pair of
// FP16 subnormals c 4^f 2^-24.
//
// Window page (BF16): four tiles of 16 tokens. Each tile has keys of 32 D bytes, then values of 32 D bytes, both in
// fragment order. So a lane reads its operand with 16-byte loads and no shuffles.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/common/page_layout.h"

#define OSCAR_HD OSCAR_HOST_DEVICE

namespace oscar::kernels {

using oscar::kPageTokens;
inline constexpr int kTileTokens = 16;
inline constexpr int kTilesPerPage = kPageTokens / kTileTokens;

constexpr PageLayout uniform_page(int head_dim) {
  const SideLayout key = uniform_side(head_dim, head_dim, false, 0);
  return {key, uniform_side(head_dim, head_dim, false, key.end())};
}

// Byte offsets inside a code page.
struct CodePage {
  int head_dim;
  OSCAR_HD constexpr int code_bytes() const { return kPageTokens * head_dim / 4; }
  OSCAR_HD constexpr int key_codes() const { return 0; }
  OSCAR_HD constexpr int key_params() const { return code_bytes(); }  // FP16 (scale, zero) of token 0, 1, ... 63
  OSCAR_HD constexpr int value_codes() const { return key_params() + 4 * kPageTokens; }
  OSCAR_HD constexpr int value_params() const { return value_codes() + code_bytes(); }  // as key_params()
  OSCAR_HD constexpr int bytes() const { return value_params() + 4 * kPageTokens; }
};

// Position of a register in the lane's words of a tile: word index and two-bit field.
struct CodeField {
  int word, field;
};

// Keys: register r of channel step s. The two tokens (r & 1) of a column half (r >> 1) share the field, so the query
// operand absorbs 4^-field.
OSCAR_HD constexpr CodeField key_field(int head_dim, int step, int r) {
  const int p = (r & 1) * (head_dim / 8) + 2 * step + (r >> 1);
  return {p / 8, p % 8};
}
// Values: the two token halves (r >> 1) of a channel share the field, so the accumulator absorbs 4^-field at the end.
OSCAR_HD constexpr CodeField value_field(int step, int r) {
  const int p = 2 * step + (r & 1);
  return {2 * (p / 8) + (r >> 1), p % 8};
}
// The power of four by which an expanded field exceeds its code. Fields 5 to 7 are first shifted down, because an FP16
// significand has ten bits.
OSCAR_HD constexpr int field_exponent(int field) { return field < 5 ? field : field - 5; }

// Checks that the kernel's reading of a page agrees with the page layout, for every code of a tile.
constexpr bool fields_agree(int head_dim) {
  const PageLayout page = uniform_page(head_dim);
  const int words = head_dim / 32, width = words < 4 ? words : 4;
  for (int lane = 0; lane < 32; ++lane)
    for (int step = 0; step < head_dim / 16; ++step)
      for (int r = 0; r < 4; ++r)
        for (int half = 0; half < 2; ++half) {
          const int g = lane / 4, t = lane % 4, row = g + 8 * (r & 1), column = 2 * t + 8 * (r >> 1) + half;
          const CodeField k = key_field(head_dim, step, r), v = value_field(step, r);
          const int at_k = 32 * (k.word / width * 32 * width + lane * width + k.word % width) + 16 * half + 2 * k.field;
          const int at_v = 32 * (v.word / width * 32 * width + lane * width + v.word % width) + 16 * half + 2 * v.field;
          if (page.key.plane[0].key_bit(row, 16 * step + column) != at_k) return false;
          if (page.value.plane[0].value_bit(column, 16 * step + row) != at_v) return false;
        }
  return CodePage{head_dim}.key_params() == page.key.param_offset && CodePage{head_dim}.bytes() == page.bytes() &&
         CodePage{head_dim}.value_codes() == page.value.plane[0].offset &&
         CodePage{head_dim}.value_params() == page.value.param_offset;
}
static_assert(fields_agree(64) && fields_agree(128) && fields_agree(256));

// Byte offset of one BF16 element inside a window page.
OSCAR_HD constexpr int window_offset(int head_dim, bool value, int token, int channel) {
  const int tile = token / kTileTokens, row_token = token % kTileTokens;
  const int step = channel / 16, c = channel % 16;
  const int row = value ? c : row_token;
  const int column = value ? row_token : c;
  const int lane = 4 * (row % 8) + (column % 8) / 2;
  const int r = (row / 8) + 2 * (column / 8);
  return tile * 64 * head_dim + (value ? 32 * head_dim : 0) + (step * 32 + lane) * 16 + r * 4 + (column % 2) * 2;
}
OSCAR_HD constexpr int window_tile_bytes(int head_dim) { return 64 * head_dim; }
OSCAR_HD constexpr int window_page_bytes(int head_dim) { return kTilesPerPage * window_tile_bytes(head_dim); }

}  // namespace oscar::kernels
