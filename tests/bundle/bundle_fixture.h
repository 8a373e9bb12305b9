// A small sound bundle for tests, and a way to see the message of an error.
#pragma once

#include <ATen/ATen.h>

#include <string>

#include "base/errors.h"
#include "bundle/bundle.h"
#include "support/message_of.h"
#include "transform/compose.h"
#include "transform/fixed_sides.h"

namespace oscar {

inline SideTransform random_side(std::int64_t heads, std::int64_t d) {
  SideTransform side;
  side.forward = compose_rotation(std::get<0>(at::linalg_qr(at::randn({heads, d, d}, at::kDouble)))).to(at::kFloat);
  side.eigenvalues = std::get<0>(at::rand({heads, d}, at::kFloat).sort(-1));
  side.clip.assign(static_cast<std::size_t>(heads), 0.957f);
  return side;
}

inline Bundle small_bundle(std::int64_t layers = 2, std::int64_t d = 16, std::int64_t kv_heads = 2,
                           bool per_head = false) {
  at::manual_seed(11);
  Bundle bundle;
  bundle.method = "oscar";
  bundle.scope = per_head ? "head" : "layer";
  bundle.model_fingerprint = "v2:sha256:" + std::string(64, 'a');
  bundle.model = {{"name", "org/model"},  {"architecture", "Qwen3ForCausalLM"},
                  {"layers", layers},     {"query_heads", 2 * kv_heads},
                  {"kv_heads", kv_heads}, {"head_dim", d}};
  bundle.hadamard_block = hadamard_block(d);
  bundle.global_key_clip = 0.96f;
  bundle.global_value_clip = 0.92f;
  bundle.provenance = {{"prompts", "x"}};
  for (std::int64_t i = 0; i < layers; ++i) {
    LayerTransform layer;
    layer.layer = i;
    layer.head_dim = d;
    layer.kv_heads = kv_heads;
    layer.key = random_side(per_head ? kv_heads : 1, d);
    layer.value = random_side(per_head ? kv_heads : 1, d);
    bundle.layers.push_back(std::move(layer));
  }
  return bundle;
}

// Of latent attention, whose values are its keys.
inline Bundle latent_bundle(std::int64_t layers = 2, std::int64_t d = 16, std::int64_t rope_dim = 4) {
  Bundle bundle = small_bundle(layers, d, 1);
  bundle.model.update({{"attention", "latent"}, {"latent_dim", d}, {"rope_dim", rope_dim}});
  for (LayerTransform& layer : bundle.layers) {
    layer.key.query_side = layer.key.forward / 2;
    layer.key.forward = layer.key.forward * 2;
    layer.value = as_value_side(layer.key);
  }
  return bundle;
}

// The same with layout blocks: keys of every layer, values of layer 0 alone.
inline Bundle blocks_bundle(std::int64_t layers = 2, std::int64_t d = 32) {
  Bundle bundle = small_bundle(layers, d);
  bundle.method = "waterfill", bundle.encoder = "search";
  for (LayerTransform& layer : bundle.layers) {
    layer.key.widths = {4, 2, 1, 0};
    layer.key.sigma = at::rand({layer.kv_heads, 4}) + 0.5;
    if (layer.layer > 0) continue;
    layer.value.widths = {2, 2, 0, 0};
    layer.value.sigma = at::rand({layer.kv_heads, 4}) + 0.5;
  }
  return bundle;
}

}  // namespace oscar
