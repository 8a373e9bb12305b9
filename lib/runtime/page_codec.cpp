#include "runtime/page_codec.h"

#include <algorithm>
#include <cstring>

#include "codec/blocks.h"
#include "codec/float16.h"
#include "runtime/expand.h"

namespace oscar {
namespace {

SideLayout side_layout(const RowCode& code, std::int32_t offset) {
  validate(code);
  return code.layout == Layout::kUniform
             ? uniform_side(code.head_dim, code.group, code.params == ParamType::kBFloat16, offset)
             : block_side(code.head_dim, code.widths.data(), offset);
}

}  // namespace

PageLayout page_layout(const RowCode& key, const RowCode& value) {
  PageLayout layout;
  layout.key = side_layout(key, 0);
  layout.value = side_layout(value, layout.key.end());
  return layout;
}

SidePages::SidePages(const SideLayout& layout, Side side) : layout_(layout), side_(side) {
  for (int b = 0; b < layout.planes; ++b) {
    const PlaneLayout& plane = layout.plane[b];
    std::vector<std::uint16_t>& places = places_.emplace_back();
    for (int token = 0; token < kPageTokens; ++token) {
      for (int i = 0; i < plane.channels; ++i) {
        const int bit = side == Side::kKey ? plane.key_bit(token, i) : plane.value_bit(token, i);
        places.push_back(static_cast<std::uint16_t>(bit / plane.width));
      }
    }
  }
  if (layout.params == ParamKind::kScaleByte) {
    for (int b = 0; b < layout.planes; ++b)
      segments_.push_back({layout.plane[b].first_channel, layout.plane[b].channels});
  } else {
    for (int g = 0; g < layout.groups; ++g) segments_.push_back({g * layout.group, layout.group});
  }
}

void SidePages::write(std::uint8_t* page, int token, const std::uint8_t* codes, const std::uint8_t* params) const {
  for (int b = 0; b < layout_.planes; ++b) {
    const PlaneLayout& plane = layout_.plane[b];
    const std::uint16_t* places = places_[static_cast<std::size_t>(b)].data() + token * plane.channels;
    const unsigned mask = (1u << plane.width) - 1u;
    for (int i = 0; i < plane.channels; ++i) {
      const int bit = places[i] * plane.width;
      std::uint8_t& byte = page[plane.offset + bit / 8];
      byte = static_cast<std::uint8_t>((byte & ~(mask << (bit % 8))) | codes[plane.first_channel + i] << (bit % 8));
    }
  }
  const auto size = static_cast<std::size_t>(layout_.param_size());
  for (int g = 0; g < layout_.groups; ++g) {
    std::memcpy(page + layout_.param_byte(token, g), params + static_cast<std::size_t>(g) * size, size);
  }
}

void SidePages::read(const std::uint8_t* page, int token, std::uint8_t* codes, std::uint8_t* params) const {
  std::memset(codes, 0, static_cast<std::size_t>(layout_.head_dim));
  for (int b = 0; b < layout_.planes; ++b) {
    const PlaneLayout& plane = layout_.plane[b];
    const std::uint16_t* places = places_[static_cast<std::size_t>(b)].data() + token * plane.channels;
    for (int i = 0; i < plane.channels; ++i) {
      const int bit = places[i] * plane.width;
      codes[plane.first_channel + i] =
          static_cast<std::uint8_t>((page[plane.offset + bit / 8] >> (bit % 8)) & ((1 << plane.width) - 1));
    }
  }
  const auto size = static_cast<std::size_t>(layout_.param_size());
  for (int g = 0; g < layout_.groups; ++g) {
    std::memcpy(params + static_cast<std::size_t>(g) * size, page + layout_.param_byte(token, g), size);
  }
}

void SidePages::read_levels(const std::uint8_t* page, int tokens, const float* sigma, float* levels, float* scale,
                            float* zero) const {
  const int d = layout_.head_dim;
  const bool levels_are_halves = layout_.params == ParamKind::kScaleByte;  // blocks: l = q + 1/2 - 2^(w-1)
  std::uint32_t words[kPageTokens * kMaxHeadDim / 16];
  if (levels_are_halves) std::fill_n(levels, tokens * d, 0.0f);
  for (int b = 0; b < layout_.planes; ++b) {
    const PlaneLayout& plane = layout_.plane[b];
    std::memcpy(words, page + plane.offset, static_cast<std::size_t>(plane.bytes()));
    const float offset = levels_are_halves ? 0.5f - 0.5f * static_cast<float>(1 << plane.width) : 0.0f;
    float* to = levels + plane.first_channel;
    if (side_ == Side::kKey && expands_keys(plane)) {
      expand_keys(plane, words, tokens, offset, d, to);
    } else if (side_ == Side::kValue && expands_values(plane)) {
      expand_values(plane, words, tokens, offset, d, to);
    } else {
      expand_by_table(plane, words, places_[static_cast<std::size_t>(b)].data(), tokens, offset, d, to);
    }
  }
  for (int g = 0; g < layout_.groups; ++g) {
    for (int t = 0; t < tokens; ++t) {
      const std::uint8_t* p = page + layout_.param_byte(t, g);
      const auto pair = [&](int which) { return static_cast<std::uint16_t>(p[2 * which] | p[2 * which + 1] << 8); };
      float& s = scale[g * kPageTokens + t];
      float& z = zero[g * kPageTokens + t];
      if (layout_.params == ParamKind::kScaleByte) {
        s = blocks::scale_value(static_cast<std::int8_t>(*p), sigma[layout_.plane[g].sigma]), z = 0.0f;
      } else if (layout_.params == ParamKind::kFloat16Pair) {
        s = float16_value(pair(0)), z = float16_value(pair(1));
      } else {
        s = bfloat16_value(pair(0)), z = bfloat16_value(pair(1));
      }
    }
  }
}

}  // namespace oscar
