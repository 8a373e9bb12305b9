#include "model/carried_rows.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "model/layer.h"

namespace oscar {
namespace {

// The start of the keys and values of layer `source` in a row.
std::int64_t place_of(const ModelConfig& config, std::int64_t source) {
  std::int64_t place = config.hidden + config.layers * config.layer_input;
  for (const std::int64_t other : config.shared_layers()) {
    if (other == source) break;
    place += 2 * config.kv_heads_of(other) * config.head_dim_of(other);
  }
  return place;
}

bool is_read(const ModelConfig& config, std::int64_t layer) {
  const std::vector<std::int64_t> sources = config.shared_layers();
  return std::binary_search(sources.begin(), sources.end(), layer);
}

}  // namespace

at::Tensor hidden_of(const ModelConfig& config, const at::Tensor& rows) {
  return rows.size(1) == config.hidden ? rows : rows.narrow(1, 0, config.hidden);
}

at::Tensor first_rows(const ModelConfig& config, const at::Tensor& hidden, const at::Tensor& layer_inputs) {
  at::Tensor rows = at::zeros({hidden.size(0), config.state_width()}, hidden.options());
  rows.narrow(1, 0, config.hidden).copy_(hidden);
  if (layer_inputs.defined()) rows.narrow(1, config.hidden, layer_inputs.size(1)).copy_(layer_inputs);
  return rows;
}

CarriedRows carried_rows(const ModelConfig& config, std::int64_t layer, const at::Tensor& rows) {
  CarriedRows carried;
  if (config.layer_input > 0) {
    carried.layer_input = rows.narrow(1, config.hidden + layer * config.layer_input, config.layer_input);
  }
  if (!config.reads_another(layer)) return carried;
  const std::int64_t source = config.shared.source[static_cast<std::size_t>(layer)];
  const std::int64_t heads = config.kv_heads_of(source), d = config.head_dim_of(source);
  const at::Tensor both = rows.narrow(1, place_of(config, source), 2 * heads * d).view({-1, 2, heads, d});
  carried.k = both.select(1, 0).contiguous();
  carried.v = both.select(1, 1).contiguous();
  return carried;
}

at::Tensor next_rows(const ModelConfig& config, std::int64_t layer, const at::Tensor& rows, const at::Tensor& hidden,
                     const CarriedRows& carried) {
  at::Tensor next = rows.clone();
  next.narrow(1, 0, config.hidden).copy_(hidden);
  if (!is_read(config, layer)) return next;
  const std::int64_t width = carried.k.size(1) * carried.k.size(2), place = place_of(config, layer);
  next.narrow(1, place, width).copy_(carried.k.flatten(1));
  next.narrow(1, place + width, width).copy_(carried.v.flatten(1));
  return next;
}

at::Tensor layer_inputs(const ModelConfig& config, const at::Tensor& x, const at::Tensor& e,
                        const at::Tensor& projection, const at::Tensor& norm) {
  const at::Tensor seen = at::linear(x, projection).mul_(1.0 / std::sqrt(static_cast<double>(config.hidden)));
  const at::Tensor by_layer = seen.view({x.size(0), config.layers, config.layer_input});
  const at::Tensor normed = rms_norm(by_layer, norm, config.rms_eps, NormKind::kWide).flatten(1);
  return normed.add_(e).mul_(std::sqrt(0.5));
}

}  // namespace oscar
