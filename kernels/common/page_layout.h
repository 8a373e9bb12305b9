// Bytes of the cache pages the decode kernel reads: one page = 64 tokens of one KV head of one layer.
// Shared by writers (CPU and CUDA) and readers; no CUDA headers needed. Tokens are numbered inside the page.
//
// Code page ("uniform" layout, group = head_dim), D = head_dim, in this order:
//   key codes     64 D / 4 bytes   four tiles of 16 tokens, each in tensor-core fragment order (below)
//   value codes   64 D / 4 bytes   the same
//   key params    256 bytes        FP16 pairs (scale, zero) of token 0, 1, ... 63
//   value scales  128 bytes        FP16 of token 0 ... 63
//   value zeros   128 bytes        FP16 of token 0 ... 63
//
// Window page (BF16), four tiles of 16 tokens; each tile: keys 32 D bytes, then values 32 D bytes, both in fragment
// order. A lane of mma.m16n8k16 then reads its whole operand with 16-byte loads and no shuffles.
//
// Fragment order (PTX ISA, m16n8k16, operand A, row-major): lane = 4 g + t (g = 0..7, t = 0..3) holds registers
// r = 0..3 with rows g + 8 (r & 1) and columns 2t + 8 (r >> 1) + {0, 1} (low, high half). Keys are A[token, channel]:
// D/16 steps along the channels. Values are A[channel, token]: D/16 steps along the channels as rows.
// Two-bit codes put register r of step s into field f of word w of the lane: eight fields of two bits in each 16-bit
// half, so that (word & (0x00030003 << 2f)) is a pair of FP16 subnormals c 4^f 2^-24.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#define OSCAR_HD __host__ __device__
#else
#define OSCAR_HD
#endif

namespace oscar::kernels {

inline constexpr int kPageTokens = 64;
inline constexpr int kTileTokens = 16;
inline constexpr int kTilesPerPage = kPageTokens / kTileTokens;

// Byte offsets inside a code page.
struct CodePage {
  int head_dim;
  OSCAR_HD constexpr int code_bytes() const { return kPageTokens * head_dim / 4; }
  OSCAR_HD constexpr int key_codes() const { return 0; }
  OSCAR_HD constexpr int value_codes() const { return code_bytes(); }
  OSCAR_HD constexpr int key_params() const { return 2 * code_bytes(); }
  OSCAR_HD constexpr int value_scales() const { return key_params() + 4 * kPageTokens; }
  OSCAR_HD constexpr int value_zeros() const { return value_scales() + 2 * kPageTokens; }
  OSCAR_HD constexpr int bytes() const { return value_zeros() + 2 * kPageTokens; }
};
static_assert(CodePage{128}.bytes() == 64 * 72, "36 bytes for each key and each value row of 128 channels");

// Position of a register inside the lane's words: word index and two-bit field.
struct CodeField {
  int word, field;
};

// Keys: register r of channel step s. Both registers of one step and one column half (r >> 1) share the field, so the
// query operand absorbs 4^-field. head_dim 64 has 2 words a lane, 128 four, 256 eight.
OSCAR_HD constexpr CodeField key_field(int head_dim, int step, int r) {
  return head_dim == 64 ? CodeField{r & 1, 2 * step + (r >> 1)} : CodeField{r + 4 * (step / 8), step % 8};
}
// Values: both registers of one row half (r & 1) share the field, so the accumulator absorbs 4^-field at the end.
OSCAR_HD constexpr CodeField value_field(int head_dim, int step, int r) {
  return head_dim == 64 ? CodeField{r >> 1, 2 * step + (r & 1)} : CodeField{r + 4 * (step / 8), step % 8};
}
// The power of four by which an expanded field is larger than its code: fields 5 to 7 are shifted down first, because
// an FP16 significand has ten bits.
OSCAR_HD constexpr int field_exponent(int field) { return field < 5 ? field : field - 5; }

// Byte offset of a lane's word inside a tile of 16 tokens: planes of (up to) four words, lanes one after another.
OSCAR_HD constexpr int word_offset(int head_dim, int lane, int word) {
  const int words = head_dim / 32;            // of a lane
  const int width = words < 4 ? words : 4;    // words read by one load
  return ((word / width) * 32 + lane) * 4 * width + (word % width) * 4;
}

// Where one code lives: bytes from the start of the page's key (value) codes to its 16-bit half, and the bit in it.
struct CodeAddress {
  int half_word;  // byte offset of the 16-bit half
  int bit;        // 0, 2, ... 14
};
OSCAR_HD constexpr CodeAddress code_address(int head_dim, bool value, int token, int channel) {
  const int tile = token / kTileTokens, row_token = token % kTileTokens;
  const int step = channel / 16, c = channel % 16;
  const int row = value ? c : row_token;      // row and column of operand A
  const int column = value ? row_token : c;
  const int g = row % 8, t = (column % 8) / 2, high = column % 2;
  const int r = (row / 8) + 2 * (column / 8);
  const CodeField f = value ? value_field(head_dim, step, r) : key_field(head_dim, step, r);
  return {tile * kTileTokens * head_dim / 4 + word_offset(head_dim, 4 * g + t, f.word) + 2 * high, 2 * f.field};
}

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
