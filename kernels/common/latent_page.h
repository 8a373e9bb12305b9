// Pages of latent attention (MLA): one KV head, whose key and value are one latent vector of 512 channels, and a key
// part of 64 channels after RoPE. Plain data and constexpr functions.
//
// A code page holds 64 tokens: the planes and parameters of a `blocks` key side of 512 channels (page_layout.h), then
// the RoPE part, BF16 [64 tokens, 64 channels] in operand order, 8192 bytes.
//
//   widths 4-2-1-1: planes 0 (4096, 2048, 1024, 1024), parameters 8192 (4 x 64), RoPE part 8448, page 16640 bytes
//
// A window page holds 64 tokens in BF16: two halves of 32 tokens, each with 512 latent and 64 RoPE channels in operand
// order, 36864 bytes.
//
// Refined codes: the last plane has, of the first 128 channels, what their own codes lose. Readers add both, and the
// last 128 channels of a stored token are 0. Windows have all channels.
//
// Operand order: blocks of 16 tokens x 16 channels of 512 bytes each; those of the same channels follow each other.
// Inside a block, lane 4 g + t (g = 0..7, t = 0..3) has 16 bytes: four registers of channels 2 t and 2 t + 1 (low, high
// half). Registers 0 to 3 are token g, token g + 8, and the same tokens with channels + 8.
#pragma once

#include <cstdint>

#include "kernels/common/page_layout.h"

namespace oscar {

constexpr std::int32_t kLatentChannels = 512, kRopeChannels = 64;
constexpr std::int32_t kLatentRow = kLatentChannels + kRopeChannels;
constexpr std::int32_t kOperandBlock = 512;     // bytes
constexpr std::int32_t kWindowHalfTokens = 32;  // tokens of half a window page

// Byte of an element in `tokens` tokens (a multiple of 16) in operand order.
OSCAR_HOST_DEVICE constexpr std::int32_t operand_byte(std::int32_t tokens, std::int32_t token, std::int32_t channel) {
  const std::int32_t row = token % 16, column = channel % 16;
  return (channel / 16 * (tokens / 16) + token / 16) * kOperandBlock + (4 * (row % 8) + column % 8 / 2) * 16 +
         (row / 8 + 2 * (column / 8)) * 4 + column % 2 * 2;
}

constexpr std::int32_t kRopePartBytes = kPageTokens * kRopeChannels * 2;
constexpr std::int32_t kWindowHalfBytes = kWindowHalfTokens * kLatentRow * 2;
constexpr std::int32_t kLatentWindowBytes = 2 * kWindowHalfBytes;

// Byte of channel 0..575 (latent, then RoPE) of token 0..63 in a window page.
OSCAR_HOST_DEVICE constexpr std::int32_t latent_window_byte(std::int32_t token, std::int32_t channel) {
  return token / kWindowHalfTokens * kWindowHalfBytes +
         operand_byte(kWindowHalfTokens, token % kWindowHalfTokens, channel);
}

struct LatentPage {
  SideLayout codes;
  OSCAR_HOST_DEVICE constexpr std::int32_t rope_offset() const { return codes.end(); }
  OSCAR_HOST_DEVICE constexpr std::int32_t bytes() const { return rope_offset() + kRopePartBytes; }
  // Byte of a RoPE channel 0..63.
  OSCAR_HOST_DEVICE constexpr std::int32_t rope_byte(std::int32_t token, std::int32_t channel) const {
    return rope_offset() + operand_byte(kPageTokens, token, channel);
  }
};

// widths: [4] of {0, 1, 2, 4}.
constexpr LatentPage latent_page(const std::uint8_t* widths) { return {band_side(kLatentChannels, widths, 0)}; }

namespace latent_page_check {
constexpr std::uint8_t kWidths[4] = {4, 2, 1, 1}, kAll[4] = {4, 4, 4, 4};
constexpr LatentPage kPage = latent_page(kWidths);
static_assert(kPage.codes.plane[1].offset == 4096 && kPage.codes.plane[3].offset == 7168 &&
              kPage.codes.param_offset == 8192 && kPage.rope_offset() == 8448 && kPage.bytes() == 16640);
static_assert(latent_page(kAll).bytes() == 24832 && kLatentWindowBytes == 73728);
static_assert(kPage.rope_byte(0, 0) == 8448 && kPage.rope_byte(8, 0) == 8452 && kPage.rope_byte(0, 8) == 8456 &&
              kPage.rope_byte(0, 2) == 8464 && kPage.rope_byte(1, 0) == 8512 && kPage.rope_byte(16, 0) == 8960 &&
              kPage.rope_byte(0, 16) == 10496 && kPage.rope_byte(63, 63) == 16638);
static_assert(latent_window_byte(32, 0) == 36864 && latent_window_byte(0, 512) == 32768 &&
              latent_window_byte(63, 575) == 73726);
}  // namespace latent_page_check

}  // namespace oscar
