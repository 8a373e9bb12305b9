#include "model/layer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace oscar {
namespace {

constexpr std::int64_t kMlpBlock = 4096;  // tokens; the two [block, intermediate] tensors are the layer's largest

at::Tensor mlp_block(const at::Tensor& x, const LayerWeights& w) {
  at::Tensor gate = at::linear(x, w.gate, w.gate_bias);
  at::silu_(gate);
  gate.mul_(at::linear(x, w.up, w.up_bias));
  return at::linear(gate, w.down, w.down_bias);
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor scale = wide.square().mean(-1, true).add_(eps).rsqrt_();
  return (wide * scale).to(x.scalar_type()).mul_(weight);
}

at::Tensor gated_mlp(const at::Tensor& x, const LayerWeights& weights) {
  const std::int64_t tokens = x.size(0);
  if (tokens <= kMlpBlock) return mlp_block(x, weights);
  at::Tensor out = at::empty_like(x);
  for (std::int64_t start = 0; start < tokens; start += kMlpBlock) {
    const std::int64_t count = std::min(kMlpBlock, tokens - start);
    out.narrow(0, start, count).copy_(mlp_block(x.narrow(0, start, count), weights));
  }
  return out;
}

double attention_scale(const ModelConfig& config) { return 1.0 / std::sqrt(static_cast<double>(config.head_dim)); }

at::Tensor decoder_layer(const ModelConfig& config, std::int64_t layer, const LayerWeights& weights,
                         const at::Tensor& hidden, const SequenceBatch& batch, const RopeTable& table,
                         Attention& attention) {
  const std::int64_t tokens = hidden.size(0), dim = config.head_dim;
  const at::Tensor normed = rms_norm(hidden, weights.input_norm, config.rms_eps);
  at::Tensor q = at::linear(normed, weights.q, weights.q_bias).view({tokens, config.query_heads, dim});
  at::Tensor k = at::linear(normed, weights.k, weights.k_bias).view({tokens, config.kv_heads, dim});
  if (weights.q_norm.defined()) q = rms_norm(q, weights.q_norm, config.rms_eps);
  if (weights.k_norm.defined()) k = rms_norm(k, weights.k_norm, config.rms_eps);

  AttentionInput input;
  input.layer = layer;
  input.batch = &batch;
  input.q = apply_rope(q, table);
  input.k = apply_rope(k, table);
  input.v = at::linear(normed, weights.v, weights.v_bias).view({tokens, config.kv_heads, dim});
  input.scale = attention_scale(config);
  if (!config.sliding_window.empty()) input.sliding_window = config.sliding_window.at(layer);

  const at::Tensor heads = attention.attend(input).reshape({tokens, config.query_heads * dim});
  at::Tensor residual = at::linear(heads, weights.o, weights.o_bias).add_(hidden);
  attention.added(input, residual);
  const at::Tensor mlp = gated_mlp(rms_norm(residual, weights.post_attention_norm, config.rms_eps), weights);
  return residual.add_(mlp);
}

}  // namespace oscar
