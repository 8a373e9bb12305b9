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

// Lloyd-Max codes of a row or a part of one.
void code_lloyd_max(float* x, std::int64_t n, int bits, bool unit_norm, float* added) {
  const float norm = lloyd_max_code(x, n, bits, unit_norm);
  if (added == nullptr || n == 0) return;
  const double left = unit_norm ? 0.0 : -lloyd_max_distortion(bits) * norm * norm / static_cast<double>(n);
  std::fill_n(added, n, static_cast<float>(left));
}

// added: null, or [n].
void code_group(const SideCode& side, float* x, std::int64_t n, int bits, float* added) {
  const auto steps_of = [&](float step) {
    if (added != nullptr) std::fill_n(added, n, uniform_error(step));
  };
  switch (side.code) {
    case CacheCode::kUniform:
    case CacheCode::kBoosted:
      return steps_of(group_codes::uniform(x, n, bits));
    case CacheCode::kIntegerZero:
      return steps_of(group_codes::integer_zero(x, n, bits, static_cast<float>(side.clip)));
    case CacheCode::kSymmetric8:
      return steps_of(group_codes::symmetric8(x, n));
    case CacheCode::kSymmetric4:
      return steps_of(group_codes::symmetric4(x, n));
    case CacheCode::kFloat8:
      group_codes::float8_e4m3(x, n);
      for (std::int64_t i = 0; added != nullptr && i < n; ++i) {
        added[i] = uniform_error(group_codes::float8_e4m3_step(x[i]));
      }
      return;
    case CacheCode::kLloydMax: {
      const std::int64_t boosted = std::llround(side.boosted_share * static_cast<double>(n));
      if (boosted > 0) code_lloyd_max(x, boosted, side.boosted_bits, side.unit_norm, added);
      float* rest = added != nullptr ? added + boosted : nullptr;
      return code_lloyd_max(x + boosted, n - boosted, bits, side.unit_norm, rest);
    }
    case CacheCode::kGaussianVector: {
      gaussian_vector_code(x, n, bits);
      if (added == nullptr) return;
      double energy = 0;
      for (std::int64_t i = 0; i < n; ++i) energy += double{x[i]} * x[i];
      std::fill_n(added, n, static_cast<float>(gaussian_vector_error(bits) * energy / static_cast<double>(n)));
      return;
    }
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

void code_channels(const SideCode& side, float* tile, std::int64_t tokens, std::int64_t d, std::int64_t stride,
                   float* added) {
  const std::vector<bool> boosted = boosted_channels(side, tile, tokens, d, stride);
  std::vector<float> column(static_cast<std::size_t>(side.group)), adds(added != nullptr ? column.size() : 0);
  for (std::int64_t first = 0; first + side.group <= tokens; first += side.group) {
    for (std::int64_t c = 0; c < d; ++c) {
      for (std::int64_t t = 0; t < side.group; ++t) {
        column[static_cast<std::size_t>(t)] = tile[(first + t) * stride + c];
      }
      const int bits = boosted[static_cast<std::size_t>(c)] ? side.boosted_bits : side.bits;
      code_group(side, column.data(), side.group, bits, added != nullptr ? adds.data() : nullptr);
      for (std::int64_t t = 0; t < side.group; ++t) {
        tile[(first + t) * stride + c] = column[static_cast<std::size_t>(t)];
        if (added != nullptr) added[(first + t) * stride + c] = adds[static_cast<std::size_t>(t)];
      }
    }
  }
}

void code_balanced(const SideCode& side, bool is_value, float* tile, std::int64_t tokens, std::int64_t d,
                   std::int64_t stride, float* added) {
  std::vector<float> copy(static_cast<std::size_t>(tokens * d)), adds(added != nullptr ? copy.size() : 0);
  for (std::int64_t t = 0; t < tokens; ++t) std::copy_n(tile + t * stride, d, copy.data() + t * d);
  sinkhorn_code(copy.data(), tokens, d, side.bits, is_value, added != nullptr ? adds.data() : nullptr);
  for (std::int64_t t = 0; t < tokens; ++t) {
    std::copy_n(copy.data() + t * d, d, tile + t * stride);
    if (added != nullptr) std::copy_n(adds.data() + t * d, d, added + t * stride);
  }
}

}  // namespace

bool adds_variance(const SideCode& side) { return side.code != CacheCode::kLloydMax || !side.unit_norm; }

void code_tile(const SideCode& side, bool is_value, float* tile, std::int64_t tokens, std::int64_t d,
               std::int64_t stride, float* added) {
  if (side.code == CacheCode::kSinkhorn) return code_balanced(side, is_value, tile, tokens, d, stride, added);
  if (side.axis == CacheAxis::kChannel) return code_channels(side, tile, tokens, d, stride, added);
  const std::int64_t group = side.group == 0 ? d : std::min<std::int64_t>(side.group, d);
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t c = 0; c < d; c += group) {
      code_group(side, tile + t * stride + c, group, side.bits, added != nullptr ? added + t * stride + c : nullptr);
    }
  }
}

}  // namespace oscar
