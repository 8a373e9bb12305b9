#include "layout/kernel_limits.h"

namespace oscar {

std::optional<UnreadCodes> unread_codes(const RowCode& key, const RowCode& value, bool rotated_mean) {
  if (key.layout != value.layout) return {{"keys and values of two layouts", "fit both with one layout"}};
  for (const RowCode* side : {&key, &value}) {
    if (side->layout != kHeadScaleLayout || *side == uniform_code(side->head_dim)) continue;
    if (side->quant_group == side->head_dim) return {{"scales in BF16", "fit them in FP16"}};
    return {{settings_text(*side) + " channels", "fit without --bits"}};
  }
  if (!rotated_mean || key.layout == kRotatedMeanLayout) return std::nullopt;
  return {{"keys centered before RoPE in layout " + to_string(key.layout), "fit with --center mean"}};
}

}  // namespace oscar
