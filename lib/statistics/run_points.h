// Where a collecting run can go on (ResumePoint::layer): a point for each layer of the forward pass, then those of each
// backward pass, then the end. L layers: points 0 to L - 1 are the layers; a backward pass whose points begin at `base`
// has its outputs there and the layers L - 1 to 0 behind them.
#pragma once

#include <cstdint>

namespace oscar {

inline constexpr std::int64_t backward_points(std::int64_t layers) { return layers + 1; }

// The layer at work in a point of that pass; L at its outputs.
inline constexpr std::int64_t backward_layer(std::int64_t layers, std::int64_t base, std::int64_t point) {
  return layers - (point - base);
}

struct RunPoints {
  std::int64_t layers = 0;
  bool kl = false, row_gradients = false;  // the backward passes of the run, in this order

  std::int64_t kl_base() const { return layers; }
  std::int64_t row_gradient_base() const { return layers + (kl ? backward_points(layers) : 0); }
  std::int64_t last() const { return row_gradient_base() + (row_gradients ? backward_points(layers) : 0); }  // the end
  bool has_backward() const { return kl || row_gradients; }

  bool in_forward(std::int64_t point) const { return point < layers; }
  bool in_kl(std::int64_t point) const { return point > layers && point < row_gradient_base(); }
  // Forward or backward; L where a backward pass starts.
  std::int64_t layer_at(std::int64_t point) const {
    if (in_forward(point)) return point;
    return backward_layer(layers, in_kl(point) ? kl_base() : row_gradient_base(), point);
  }
  // At this point, is the backward pass that begins at `base` through with the layer?
  bool through(std::int64_t base, std::int64_t layer, std::int64_t point) const {
    return layer > backward_layer(layers, base, point);
  }
};

}  // namespace oscar
