#include "methods/tile_codes.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "methods/group_codes.h"
#include "methods/lloyd_max.h"

namespace oscar {
namespace {

void code_group(const SideCode& side, float* x, std::int64_t n) {
  switch (side.code) {
    case CacheCode::kUniform:
      return group_codes::uniform(x, n, side.bits);
    case CacheCode::kSymmetric4:
      return group_codes::symmetric4(x, n);
    case CacheCode::kFloat8:
      return group_codes::float8_e4m3(x, n);
    case CacheCode::kLloydMax:
      const std::int64_t boosted = std::llround(side.boosted_share * static_cast<double>(n));
      if (boosted > 0) lloyd_max_code(x, boosted, side.boosted_bits);
      return lloyd_max_code(x + boosted, n - boosted, side.bits);
  }
}

void code_channels(const SideCode& side, float* tile, std::int64_t tokens, std::int64_t d, std::int64_t stride) {
  std::vector<float> column(static_cast<std::size_t>(side.group));
  for (std::int64_t first = 0; first + side.group <= tokens; first += side.group) {
    for (std::int64_t c = 0; c < d; ++c) {
      float* values = tile + first * stride + c;
      for (std::int64_t t = 0; t < side.group; ++t) column[static_cast<std::size_t>(t)] = values[t * stride];
      code_group(side, column.data(), side.group);
      for (std::int64_t t = 0; t < side.group; ++t) values[t * stride] = column[static_cast<std::size_t>(t)];
    }
  }
}

}  // namespace

void code_tile(const SideCode& side, float* tile, std::int64_t tokens, std::int64_t d, std::int64_t stride) {
  if (side.axis == CacheAxis::kChannel) return code_channels(side, tile, tokens, d, stride);
  const std::int64_t group = side.group == 0 ? d : std::min<std::int64_t>(side.group, d);
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t c = 0; c < d; c += group) code_group(side, tile + t * stride + c, group);
  }
}

}  // namespace oscar
