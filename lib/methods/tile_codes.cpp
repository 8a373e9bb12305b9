#include "methods/tile_codes.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "codec/codec.h"
#include "methods/gaussian_vectors.h"
#include "methods/group_codes.h"
#include "methods/lloyd_max.h"

namespace oscar {
namespace {

void code_group(const SideCode& side, float* x, std::int64_t n, int bits) {
  switch (side.code) {
    case CacheCode::kUniform:
    case CacheCode::kBoosted:
      return void(group_codes::uniform(x, n, bits));
    case CacheCode::kIntegerZero:
      return void(group_codes::integer_zero(x, n, bits, static_cast<float>(side.clip)));
    case CacheCode::kSymmetric8:
      return void(group_codes::symmetric8(x, n));
    case CacheCode::kSymmetric4:
      return void(group_codes::symmetric4(x, n));
    case CacheCode::kFloat8:
      return group_codes::float8_e4m3(x, n);
    case CacheCode::kLloydMax: {
      const std::int64_t boosted = std::llround(side.boosted_share * static_cast<double>(n));
      if (boosted > 0) lloyd_max_code(x, boosted, side.boosted_bits, side.unit_norm);
      return void(lloyd_max_code(x + boosted, n - boosted, bits, side.unit_norm));
    }
    case CacheCode::kGaussianVector:
      return gaussian_vector_code(x, n, bits);
    case CacheCode::kSinkhorn:
      break;
  }
  throw std::logic_error("a Sinkhorn code works on tiles");
}

// The channels with the largest mean |x| of the tile; ties go to the lower channel.
std::vector<bool> boosted_channels(const SideCode& side, const float* tile, std::int64_t tokens, std::int64_t d,
                                   std::int64_t stride) {
  std::vector<bool> chosen(static_cast<std::size_t>(d), false);
  if (side.code != CacheCode::kBoosted) return chosen;
  std::vector<double> size(static_cast<std::size_t>(d), 0.0);
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t c = 0; c < d; ++c) size[static_cast<std::size_t>(c)] += std::fabs(tile[t * stride + c]);
  }
  std::vector<std::size_t> order(size.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return size[a] > size[b]; });
  const auto count = static_cast<std::size_t>(side.boosted_share * static_cast<double>(d) + 1e-6);
  for (std::size_t i = 0; i < std::min(count, order.size()); ++i) chosen[order[i]] = true;
  return chosen;
}

void code_channels(const SideCode& side, float* tile, std::int64_t tokens, std::int64_t d, std::int64_t stride) {
  const std::vector<bool> boosted = boosted_channels(side, tile, tokens, d, stride);
  std::vector<float> column(static_cast<std::size_t>(side.group));
  for (std::int64_t first = 0; first + side.group <= tokens; first += side.group) {
    for (std::int64_t c = 0; c < d; ++c) {
      for (std::int64_t t = 0; t < side.group; ++t) {
        column[static_cast<std::size_t>(t)] = tile[(first + t) * stride + c];
      }
      const int bits = boosted[static_cast<std::size_t>(c)] ? side.boosted_bits : side.bits;
      code_group(side, column.data(), side.group, bits);
      for (std::int64_t t = 0; t < side.group; ++t) {
        tile[(first + t) * stride + c] = column[static_cast<std::size_t>(t)];
      }
    }
  }
}

void code_balanced(const SideCode& side, bool is_value, float* tile, std::int64_t tokens, std::int64_t d,
                   std::int64_t stride) {
  std::vector<float> copy(static_cast<std::size_t>(tokens * d));
  for (std::int64_t t = 0; t < tokens; ++t) std::copy_n(tile + t * stride, d, copy.data() + t * d);
  sinkhorn_code(copy.data(), tokens, d, side.bits, is_value);
  for (std::int64_t t = 0; t < tokens; ++t) {
    std::copy_n(copy.data() + t * d, d, tile + t * stride);
  }
}

}  // namespace

void code_tile(const SideCode& side, bool is_value, float* tile, std::int64_t tokens, std::int64_t d,
               std::int64_t stride) {
  if (side.code == CacheCode::kSinkhorn) return code_balanced(side, is_value, tile, tokens, d, stride);
  if (side.axis == CacheAxis::kChannel) return code_channels(side, tile, tokens, d, stride);
  const std::int64_t group = side.group == 0 ? d : std::min<std::int64_t>(side.group, d);
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t c = 0; c < d; c += group) {
      code_group(side, tile + t * stride + c, group, side.bits);
    }
  }
}

}  // namespace oscar
