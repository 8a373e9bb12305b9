#include "registry/codebook_spec.h"

#include <cmath>

namespace oscar {
namespace {

constexpr double kScaleBits = 16.0;

double side_bits(const CodebookSide& side, std::int64_t heads, std::int64_t head_dim) {
  if (!side.coded()) return side.bits + 2.0 * kScaleBits / static_cast<double>(head_dim);
  return codebook_bits(side.channels, side.centroids, side.second, side.scale, heads, head_dim);
}

}  // namespace

double codebook_bits(int channels, std::int64_t centroids, std::int64_t second, RowScale scale, std::int64_t heads,
                     std::int64_t head_dim) {
  const double index =
      std::log2(static_cast<double>(centroids)) + (second > 0 ? std::log2(static_cast<double>(second)) : 0.0);
  double bits = index / channels;
  if (scale == RowScale::kHead) bits += kScaleBits / static_cast<double>(head_dim);
  if (scale == RowScale::kToken) bits += kScaleBits / static_cast<double>(heads * head_dim);
  return bits;
}

double bits_per_element(const CodebookSpec& spec, std::int64_t heads, std::int64_t head_dim) {
  return 0.5 * (side_bits(spec.key, heads, head_dim) + side_bits(spec.value, heads, head_dim));
}

}  // namespace oscar
