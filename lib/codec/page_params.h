// Decodes the codes of a page with the parameters of a token, for every kind of parameter in pages:
//   xhat = scale (level - zero), level = code + level_offset()
#pragma once

#include <cstdint>

#include "kernels/common/page_layout.h"

namespace oscar {

struct LevelScale {
  float scale, zero;
};

// Parameter `index` (a ScaleRun of row_code.h) of one token. page: page of the KV head; sigma: [4] deviations of
// blocks, read only if parameters are scale bytes.
LevelScale read_param(const SideLayout& side, const std::uint8_t* page, int token, int index, const float* sigma);

// 0; for scale bytes 1/2 - 2^(w-1).
float level_offset(const SideLayout& side, int width);

}  // namespace oscar
