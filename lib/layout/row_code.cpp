#include "layout/row_code.h"

#include <algorithm>

#include "base/errors.h"

namespace oscar {
namespace {

// What differs between layouts, as functions of a valid code (validate() first checks what all layouts share).
struct RowLayout {
  const char* name;
  void (*validate)(const RowCode& code);
  int (*code_bytes)(const RowCode& code);
  int (*param_bytes)(const RowCode& code);
  bool zero_points;
  std::string (*settings)(const RowCode& code);
  SideLayout (*side)(const RowCode& code, std::int32_t offset);
};

void validate_uniform(const RowCode& code) {
  const std::string d = std::to_string(code.head_dim);
  if (code.head_dim % 4 != 0) throw InputError("head_dim " + d + " is not a multiple of 4, as 2-bit packing needs");
  if (code.quant_group < 1 || code.head_dim % code.quant_group != 0) {
    throw InputError("quantization group " + std::to_string(code.quant_group) + " does not divide head_dim " + d);
  }
}

void validate_bands(const RowCode& code) {
  if (code.head_dim % 32 != 0) {
    throw InputError("layout blocks needs a head_dim that 32 divides; found " + std::to_string(code.head_dim));
  }
  for (const int w : code.widths) {
    if (w != 0 && w != 1 && w != 2 && w != 4) {
      throw InputError("block width " + std::to_string(w) + " is not one of 0, 1, 2, 4");
    }
  }
  if (code.refined && (code.widths.front() == 0 || code.widths.back() == 0)) {
    throw InputError("the last block cannot refine the first if one of them has no bits");
  }
}

int band_code_bytes(const RowCode& code) {
  int bits = 0;
  for (const int w : code.widths) bits += w * code.band_channels();
  return bits / 8;
}

int coded_bands(const RowCode& code) {
  return static_cast<int>(std::count_if(code.widths.begin(), code.widths.end(), [](int w) { return w > 0; }));
}

// One row per layout, in the order of Layout.
constexpr RowLayout kLayouts[] = {
    {"uniform", validate_uniform, [](const RowCode& c) { return c.head_dim / 4; },
     [](const RowCode& c) { return c.quant_groups() * 4; }, true,
     [](const RowCode& c) { return "groups of " + std::to_string(c.quant_group); },
     [](const RowCode& c, std::int32_t offset) {
       return uniform_side(c.head_dim, c.quant_group, c.params == ParamType::kBFloat16, offset);
     }},
    {"blocks", validate_bands, band_code_bytes, coded_bands, false,
     [](const RowCode&) { return std::string("blocks of channels"); },
     [](const RowCode& c, std::int32_t offset) { return band_side(c.head_dim, c.widths.data(), offset); }},
};

const RowLayout& of(Layout layout) { return kLayouts[static_cast<std::size_t>(layout)]; }

SideLayout side_layout(const RowCode& code, std::int32_t offset) {
  validate(code);
  return of(code.layout).side(code, offset);
}

}  // namespace

int RowCode::code_bytes() const { return of(layout).code_bytes(*this); }
int RowCode::param_bytes() const { return of(layout).param_bytes(*this); }
bool RowCode::zero_points() const { return of(layout).zero_points; }

RowCode uniform_code(int head_dim, int quant_group, ParamType params) {
  RowCode code{Layout::kUniform, head_dim, quant_group > 0 ? quant_group : head_dim, params};
  validate(code);
  return code;
}

RowCode band_code(int head_dim, const std::array<std::uint8_t, kBands>& widths, bool refined) {
  RowCode code{
      .layout = Layout::kBlocks, .head_dim = head_dim, .quant_group = head_dim, .widths = widths, .refined = refined};
  validate(code);
  return code;
}

void validate(const RowCode& code) {
  if (code.head_dim < 4 || code.head_dim > kMaxHeadDim) {
    throw InputError("head_dim " + std::to_string(code.head_dim) + " cannot be quantized; expected 4 to " +
                     std::to_string(kMaxHeadDim));
  }
  of(code.layout).validate(code);
}

std::string to_string(Layout layout) { return of(layout).name; }
std::string settings_text(const RowCode& code) { return of(code.layout).settings(code); }

PageLayout page_layout(const RowCode& key, const RowCode& value) {
  PageLayout layout;
  layout.key = side_layout(key, 0);
  layout.value = side_layout(value, layout.key.end());
  return layout;
}

PageLayout page_layout(const RowCode& key) {
  PageLayout layout;
  layout.key = side_layout(key, 0);
  layout.value.head_dim = key.head_dim;
  layout.value.param_offset = layout.key.end();
  return layout;
}

std::vector<ScaleRun> scale_runs(const SideLayout& side) {
  std::vector<ScaleRun> runs;
  for (int i = 0; i < side.quant_groups; ++i) {
    if (side.params == ParamKind::kScaleByte) {
      runs.push_back({side.plane[i].first_channel, side.plane[i].channels, i});
    } else {
      runs.push_back({i * side.quant_group, side.quant_group, 0});
    }
  }
  return runs;
}

}  // namespace oscar
