// What the cache stores for one row, one token of one KV head: its layout, and the page of such rows. A reader needs
// nothing else; the codec chooses the stored numbers (codec/codec.h). Byte-level description: docs/format-codec.md.
//
// Layout `uniform`, groups of G channels: 2-bit codes q, scale s and zero point z as 16-bit floats; xhat = (q - z) s.
// Layout `blocks`: four blocks of d/4 channels, each with a width w of 0, 1, 2 or 4 bits, and one scale byte e if w >
// 0. Level l = (2q + 1 - 2^w)/2, xhat = l s with s = sigma 2^(e/32), sigma calibrated; a block of width 0 decodes to 0.
// Refined (latent attention): the last block codes what the first loses, x - xhat. Readers add it there, and the last
// block's own channels decode to 0.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/common/page_layout.h"

namespace oscar {

enum class Layout : std::uint8_t { kUniform, kBlocks };
enum class ParamType : std::uint8_t { kFloat16, kBFloat16 };

constexpr int kMaxHeadDim = 1024;
constexpr int kBands = 4;

struct RowCode {
  Layout layout = Layout::kUniform;
  int head_dim = 128;                                   // d
  int quant_group = 128;                                // uniform: G, divides d
  ParamType params = ParamType::kFloat16;               // uniform: type of s and z
  std::array<std::uint8_t, kBands> widths{2, 2, 2, 2};  // blocks: bits of each block of d/4 channels
  bool refined = false;                                 // blocks: the last one codes what the first loses

  int quant_groups() const { return head_dim / quant_group; }
  int band_channels() const { return head_dim / kBands; }
  int code_bytes() const;    // uniform: d/4
  int param_bytes() const;   // uniform: s and z of each group, 2 bytes each; blocks: 1 byte per block with w > 0
  bool zero_points() const;  // true if a scale comes with a free offset for the codes of its channels
  double bits_per_element() const { return 8.0 * (code_bytes() + param_bytes()) / head_dim; }
  bool operator==(const RowCode&) const = default;
};

RowCode uniform_code(int head_dim, int quant_group = 0, ParamType params = ParamType::kFloat16);  // 0: one group
RowCode band_code(int head_dim, const std::array<std::uint8_t, kBands>& widths, bool refined = false);

// InputError if the layout does not support d, G or a width, and for a refined code whose first or last width is 0.
void validate(const RowCode& code);

std::string to_string(Layout layout);            // "uniform", "blocks"
std::string settings_text(const RowCode& code);  // text for people: "groups of 32", "blocks of channels"

// A page of such rows. InputError as validate().
PageLayout page_layout(const RowCode& key, const RowCode& value);
PageLayout page_layout(const RowCode& key);  // of keys only

// The channels that parameter `i` of a token scales, and the plane of their codes; one entry for each of
// side.quant_groups.
struct ScaleRun {
  int first_channel, channels, plane;
};
std::vector<ScaleRun> scale_runs(const SideLayout& side);

}  // namespace oscar
