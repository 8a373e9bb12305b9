#include "cache/kv_method.h"

#include <algorithm>

namespace oscar {
namespace {

std::size_t index(std::int64_t layer) { return static_cast<std::size_t>(layer); }

}  // namespace

const SideTransform* KvMethod::transform(std::int64_t layer, Side side) const {
  if (layers.empty() || left_out_at(layer)) return nullptr;
  const LayerTransform& t = layers.at(index(places.empty() ? layer : places.at(index(layer))));
  return side == Side::kKey ? &t.key : &t.value;
}

const LayerCode& KvMethod::layer_code(std::int64_t layer) const {
  if (left_out_at(layer)) return codes.front();
  return codes.at(index(places.empty() ? layer : places.at(index(layer))));
}

const RowCode& KvMethod::code(std::int64_t layer, Side side) const {
  const LayerCode& c = layer_code(layer);
  return side == Side::kKey ? c.key : c.value;
}

RowCodec KvMethod::codec(std::int64_t layer, Side side, std::int64_t head) const {
  RowCodec codec{.code = code(layer, side), .side = rope_dim > 0 ? Side::kValue : side};
  codec.encoder = side == Side::kKey ? key_encoder : value_encoder;
  const auto h = static_cast<std::size_t>(head);
  if (const SideTransform* t = transform(layer, side); t != nullptr && !t->clip.empty()) {
    codec.clip = t->clip.size() == 1 ? t->clip[0] : t->clip.at(h);
  }
  const LayerCode& c = layer_code(layer);
  const auto& sigma = side == Side::kKey ? c.key_sigma : c.value_sigma;
  if (!sigma.empty()) codec.sigma = sigma.at(h);
  return codec;
}

bool KvMethod::quantized_at(std::int64_t layer) const { return quantized && !left_out_at(layer); }

PageLayout KvMethod::page(std::int64_t layer) const {
  const RowCode& key = code(layer, Side::kKey);
  return rope_dim > 0 ? page_layout(key) : page_layout(key, code(layer, Side::kValue));
}

bool KvMethod::left_out_at(std::int64_t layer) const { return !places.empty() && places.at(index(layer)) == kLeftOut; }

std::int64_t KvMethod::held_layers(const ModelConfig& model) const {
  return model.kv_layers() - std::count(places.begin(), places.end(), kLeftOut);
}

double KvMethod::bits_per_element() const {
  if (!quantized) return 16.0;
  return coder->bits_per_element(*this);
}

double KvMethod::token_bytes(const ModelConfig& model) const {
  return bits_per_element() * static_cast<double>(model.coded_width()) / 8.0 + static_cast<double>(2 * rope_dim);
}

double KvMethod::bits_per_element_at(std::int64_t context) const {
  if (!quantized) return 16.0;
  return coder->bits_per_element_at(*this, context);
}

std::uint64_t KvMethod::window_bytes(const ModelConfig& model, std::int64_t context) const {
  const std::int64_t tokens =
      quantized ? std::min(windows.sink + windows.recent + windows.flush - 1, context) : context;
  return static_cast<std::uint64_t>(2 * model.coded_width() * tokens + 2 * rope_dim * context);
}

std::uint64_t allocated_bytes(const KvMethod& method, const ModelConfig& model, std::int64_t context) {
  std::uint64_t bytes = held_bytes(method, model, context);
  const auto row = static_cast<std::uint64_t>(2 * model.cached_width());
  for (std::int64_t place = 0; place < model.kv_layers(); ++place) {
    if (!method.left_out_at(place)) continue;
    bytes += row * static_cast<std::uint64_t>(std::min(model.span(model.kv_layer(place)), context));
  }
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {  // windows outside the cache, for any method
    if (!model.is_local(layer) || model.reads_another(layer)) continue;
    const std::int64_t tokens = std::min(model.span(layer), context);
    bytes += static_cast<std::uint64_t>(2 * 2 * model.local.kv_heads * model.local.head_dim * tokens);
  }
  return bytes;
}

std::uint64_t held_bytes(const KvMethod& method, const ModelConfig& model, std::int64_t context) {
  if (method.quantized) return method.coder->held_bytes(method, model, context);
  return method.window_bytes(model, context) * static_cast<std::uint64_t>(model.kv_layers());
}

std::string by_side(const std::string& key, const std::string& value) {
  return key == value ? key : "K " + key + ", V " + value;
}

}  // namespace oscar
