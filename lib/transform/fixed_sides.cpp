#include "transform/fixed_sides.h"

#include <ATen/ATen.h>

#include "transform/compose.h"

namespace oscar {
namespace {

SideTransform shared_side(const at::Tensor& matrix) {
  return {.forward = matrix.unsqueeze(0).to(at::kFloat).contiguous(),
          .eigenvalues = at::ones({1, matrix.size(0)}, at::kFloat),
          .clip = {0.0f}};
}

// The deviation to which the scale bytes of a block are relative. Scales range from 2^-4 to 2^4 of it. Relative to 1, 4
// bits would hold blocks with a largest channel of .47 to 118, and decode smaller ones as large as .47. With these
// deviations, 4 bits hold .06 to 15, 2 bits .05 to 12 and 1 bit .03 to 8. Powers of two leave the codes of all other
// rows unchanged.
float scale_origin(std::uint8_t width) { return width == 4 ? 0.125f : (width == 2 ? 0.5f : 1.0f); }

}  // namespace

SideTransform identity_side(std::int64_t head_dim) { return shared_side(at::eye(head_dim, at::kDouble)); }
SideTransform hadamard_side(std::int64_t head_dim) { return shared_side(hadamard_matrix(head_dim)); }

SideTransform as_value_side(const SideTransform& key) {
  SideTransform value = key;
  if (key.query_side.defined()) value.inverse = key.query_side.transpose(1, 2).contiguous();
  value.query_side = at::Tensor();
  return value;
}

void set_block_widths(SideTransform& side, const Widths& widths, std::int64_t kv_heads) {
  side.widths.assign(widths.begin(), widths.end()), side.refined = widths.refined;
  at::Tensor sigma = at::empty({kv_heads, kBands}, at::kFloat);
  for (std::int64_t b = 0; b < kBands; ++b)
    sigma.select(1, b).fill_(scale_origin(side.widths[static_cast<std::size_t>(b)]));
  // The last block then codes what the first loses, whose deviation is .60, .34 and .10 for 1, 2 and 4 bits: about as
  // large as the first block's origin.
  if (widths.refined) sigma.select(1, kBands - 1).mul_(scale_origin(widths.front()));
  side.sigma = sigma;
}

void set_block_widths(LayerTransform& layer, const Widths& key, const Widths& value) {
  set_block_widths(layer.key, key, layer.kv_heads);
  set_block_widths(layer.value, value, layer.kv_heads);
}

}  // namespace oscar
