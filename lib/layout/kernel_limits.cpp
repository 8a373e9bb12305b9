#include "layout/kernel_limits.h"

#include <algorithm>

namespace oscar {

std::string engine_head_sizes(const char* last) {
  std::string text;
  for (const HeadLimit& head : kEngineHeads) {
    text += (text.empty()                                   ? ""
             : head.head_dim < kEngineHeads.back().head_dim ? ", "
                                                            : last) +
            std::to_string(head.head_dim);
  }
  return text;
}

std::int64_t engine_most_group(std::int64_t head_dim) {
  const auto at = std::ranges::find(kEngineHeads, head_dim, &HeadLimit::head_dim);
  return at == kEngineHeads.end() ? 0 : at->most_group;
}

std::optional<UnreadCodes> unread_codes(const RowCode& key, const RowCode& value, bool rotated_mean) {
  if (key.layout != value.layout) return {{"keys and values of two layouts", "fit both with one layout"}};
  for (const RowCode* side : {&key, &value}) {
    if (side->layout == kHeadScaleLayout && side->head_dim > kMostHeadScaleHead) {
      return {{"head_dim " + std::to_string(side->head_dim) + " in layout " + to_string(side->layout),
               "fit with --method waterfill"}};
    }
    if (side->layout != kHeadScaleLayout || *side == uniform_code(side->head_dim)) continue;
    if (side->quant_group == side->head_dim) return {{"scales in BF16", "fit them in FP16"}};
    return {{settings_text(*side) + " channels", "fit without --bits"}};
  }
  if (!rotated_mean || key.layout == kRotatedMeanLayout) return std::nullopt;
  return {{"keys centered before RoPE in layout " + to_string(key.layout), "fit with --center mean"}};
}

}  // namespace oscar
