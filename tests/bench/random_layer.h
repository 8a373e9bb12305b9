// One decoder layer with random weights at a given geometry, for timing without a checkpoint.
#pragma once

#include <ATen/ATen.h>

#include "model/layer.h"

namespace oscar {

struct RandomLayer {
  ModelConfig config;
  LayerWeights weights;

  at::Tensor forward(const at::Tensor& hidden, const SequenceBatch& batch, const RopeTable& table,
                     Attention& attention) const {
    return decoder_layer(config, 0, weights, hidden, batch, table, attention);
  }
};

// Qwen3-8B: hidden 4096, 32 query and 8 KV heads of 128, intermediate 12288, QK-norm.
inline ModelConfig geometry_8b() {
  ModelConfig config;
  config.architecture = "Qwen3ForCausalLM";
  config.layers = 1;
  config.hidden = 4096;
  config.intermediate = 12288;
  config.query_heads = 32;
  config.kv_heads = 8;
  config.head_dim = 128;
  config.max_position = 40960;
  config.qk_norm = true;
  config.rope.theta = 1000000.0;
  return config;
}

inline RandomLayer random_layer(const ModelConfig& config, at::ScalarType dtype = at::kFloat,
                                at::Device device = at::kCPU) {
  at::Generator generator = at::detail::createCPUGenerator(1);
  const auto matrix = [&](std::int64_t out, std::int64_t in) {
    const double spread = 1.0 / std::sqrt(static_cast<double>(in));
    return at::randn({out, in}, generator, at::TensorOptions().dtype(at::kFloat)).mul_(spread).to(device, dtype);
  };
  const at::TensorOptions options = at::TensorOptions().dtype(dtype).device(device);
  const std::int64_t q_width = config.query_heads * config.head_dim, kv_width = config.kv_heads * config.head_dim;
  RandomLayer layer{config, {}};
  layer.weights.input_norm = at::ones({config.hidden}, options);
  layer.weights.mlp_norm = at::ones({config.hidden}, options);
  layer.weights.q = matrix(q_width, config.hidden);
  layer.weights.k = matrix(kv_width, config.hidden);
  layer.weights.v = matrix(kv_width, config.hidden);
  layer.weights.o = matrix(config.hidden, q_width);
  if (config.qk_norm) {
    layer.weights.q_norm = at::ones({config.head_dim}, options);
    layer.weights.k_norm = at::ones({config.head_dim}, options);
  }
  layer.weights.gate = matrix(config.intermediate, config.hidden);
  layer.weights.up = matrix(config.intermediate, config.hidden);
  layer.weights.down = matrix(config.hidden, config.intermediate);
  return layer;
}

inline at::Tensor random_hidden(const ModelConfig& config, std::int64_t tokens, at::ScalarType dtype = at::kFloat,
                                at::Device device = at::kCPU) {
  at::Generator generator = at::detail::createCPUGenerator(2);
  return at::randn({tokens, config.hidden}, generator, at::TensorOptions().dtype(at::kFloat)).to(device, dtype);
}

}  // namespace oscar
