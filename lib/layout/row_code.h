// What the cache stores for one row, one token of one KV head: its layout, and the page that such rows fill. All that a
// reader needs; how the stored numbers are chosen is the codec's affair (codec/codec.h). Byte-level description:
// docs/format-codec.md.
//
// Layout `uniform`, group of G channels: 2-bit codes q, scale s and zero point z as 16-bit floats; xhat = (q - z) s.
// Layout `blocks`: four bands of d/4 channels, widths w from {0, 1, 2, 4} bits, one scale byte e for each band with
// w > 0; level l = (2q + 1 - 2^w)/2, xhat = l s with s = sigma 2^(e/32), sigma calibrated; a band of width 0 reads 0.
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
  std::array<std::uint8_t, kBands> widths{2, 2, 2, 2};  // blocks: bits of each band of d/4 channels

  int quant_groups() const { return head_dim / quant_group; }
  int band_channels() const { return head_dim / kBands; }
  int code_bytes() const;      // uniform: d/4
  int param_bytes() const;     // uniform: s and z of each group, 2 bytes each; blocks: 1 for each band with w > 0
  int scale_channels() const;  // channels that share a scale: uniform: G; blocks: d/4
  bool zero_points() const;    // whether a scale comes with an offset, which the codes of its channels are free to use
  double bits_per_element() const { return 8.0 * (code_bytes() + param_bytes()) / head_dim; }
  bool operator==(const RowCode&) const = default;
};

RowCode uniform_code(int head_dim, int quant_group = 0, ParamType params = ParamType::kFloat16);  // 0: whole head
RowCode band_code(int head_dim, const std::array<std::uint8_t, kBands>& widths);

// InputError when d, G or a width is not one that the layout can carry.
void validate(const RowCode& code);

std::string to_string(Layout layout);            // "uniform", "blocks"
std::string settings_text(const RowCode& code);  // for people: "groups of 32", "blocks of channels"

// A page of such rows. InputError as of validate().
PageLayout page_layout(const RowCode& key, const RowCode& value);
// Of one vector that is key and value: in the order of keys, the value side is empty.
PageLayout page_layout(const RowCode& vector);

// The channels that parameter `i` of a token scales, and the plane that holds their codes; one for each of
// side.quant_groups.
struct ScaleRun {
  int first_channel, channels, plane;
};
std::vector<ScaleRun> scale_runs(const SideLayout& side);

}  // namespace oscar
