#include "codec/page_params.h"

#include "codec/layouts.h"
#include "layout/float16.h"

namespace oscar {

LevelScale read_param(const SideLayout& side, const std::uint8_t* page, int token, int index, const float* sigma) {
  const std::uint8_t* p = page + side.param_byte(token, index);
  if (side.params == ParamKind::kScaleByte) {
    return {blocks::scale_value(static_cast<std::int8_t>(*p), sigma[side.plane[index].sigma]), 0.0f};
  }
  const auto pair = [&](int which) { return static_cast<std::uint16_t>(p[2 * which] | p[2 * which + 1] << 8); };
  if (side.params == ParamKind::kFloat16Pair) return {float16_value(pair(0)), float16_value(pair(1))};
  return {bfloat16_value(pair(0)), bfloat16_value(pair(1))};
}

float level_offset(const SideLayout& side, int width) {
  return side.params == ParamKind::kScaleByte ? 0.5f - 0.5f * static_cast<float>(1 << width) : 0.0f;
}

}  // namespace oscar
