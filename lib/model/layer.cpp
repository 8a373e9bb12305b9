#include "model/layer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "model/experts.h"
#include "model/gated_delta_net.h"
#include "model/latent_attention.h"

namespace oscar {
namespace {

constexpr std::int64_t kMlpBlock = 4096;  // tokens; the two [block, intermediate] tensors are the layer's largest

at::Tensor mlp_block(const at::Tensor& x, const LayerWeights& w, Activation activation) {
  at::Tensor gate = at::linear(x, w.gate, w.gate_bias);
  activate_(gate, activation);
  gate.mul_(at::linear(x, w.up, w.up_bias));
  return at::linear(gate, w.down, w.down_bias);
}

// Of q or k [T, H d] -> [T, H, d]: over each head, or over the whole projection where the weight is as long.
at::Tensor normed_heads(const at::Tensor& x, const at::Tensor& weight, std::int64_t dim, double eps, NormKind kind) {
  const std::int64_t tokens = x.size(0), heads = x.size(1) / dim;
  if (!weight.defined()) return x.view({tokens, heads, dim});
  if (weight.size(0) == dim) return rms_norm(x.view({tokens, heads, dim}), weight, eps, kind);
  return rms_norm(x, weight, eps, kind).view({tokens, heads, dim});
}

// x over the root of its mean square over the last dimension, in FP32; x's dtype.
at::Tensor unit_norm(const at::Tensor& x, double eps) {
  const at::Tensor wide = x.to(at::kFloat);
  return (wide * wide.square().mean(-1, true).add_(eps).rsqrt_()).to(x.scalar_type());
}

// The MLP, or experts and with them the MLP where there is one.
at::Tensor feed_forward(const ModelConfig& config, const at::Tensor& x, const LayerWeights& weights,
                        const Pieces& pieces) {
  if (!weights.router.defined()) return gated_mlp(x, weights, config.activation);
  at::Tensor out = expert_mlp(x, weights, config.experts, pieces, config.activation);
  if (!weights.gate.defined()) return out;
  const at::Tensor shared = gated_mlp(x, weights, config.activation);
  if (!weights.shared_weight.defined()) return out.add_(shared);
  return out.add_(at::linear(x, weights.shared_weight).sigmoid_() * shared);
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, NormKind kind) {
  at::Tensor wide = x.to(at::kFloat);
  if (kind == NormKind::kCentred) wide = wide - wide.mean(-1, true);
  const at::Tensor normed = wide * wide.square().mean(-1, true).add_(eps).rsqrt_();
  switch (kind) {
    case NormKind::kRounded:
      return normed.to(x.scalar_type()).mul_(weight);
    case NormKind::kWide:
    case NormKind::kCentred:
      return (normed * weight.to(at::kFloat)).to(x.scalar_type());
    case NormKind::kOnePlus:
      return (normed * (weight.to(at::kFloat) + 1.0)).to(x.scalar_type());
  }
  throw std::logic_error("a kind of norm without a case");
}

void activate_(at::Tensor& gate, Activation activation) {
  if (activation == Activation::kSilu) {
    at::silu_(gate);
  } else {
    at::gelu_(gate, "tanh");
  }
}

at::Tensor gated_mlp(const at::Tensor& x, const LayerWeights& weights, Activation activation) {
  const std::int64_t tokens = x.size(0);
  if (tokens <= kMlpBlock) return mlp_block(x, weights, activation);
  at::Tensor out = at::empty_like(x);
  for (std::int64_t start = 0; start < tokens; start += kMlpBlock) {
    const std::int64_t count = std::min(kMlpBlock, tokens - start);
    out.narrow(0, start, count).copy_(mlp_block(x.narrow(0, start, count), weights, activation));
  }
  return out;
}

double attention_scale(const ModelConfig& config) {
  return config.attention_scale > 0.0 ? config.attention_scale : 1.0 / std::sqrt(static_cast<double>(config.head_dim));
}

at::Tensor decoder_layer(const ModelConfig& config, std::int64_t layer, const LayerWeights& weights,
                         const at::Tensor& hidden, const SequenceBatch& batch, const RopeTable& table,
                         Attention& attention, const Pieces& pieces) {
  const std::int64_t tokens = hidden.size(0), dim = config.head_dim;
  const auto norm = [&](const at::Tensor& x, const at::Tensor& weight) {
    return weight.defined() ? rms_norm(x, weight, config.rms_eps, pieces.norm) : x;
  };
  const auto heads = [&](const at::Tensor& x, const at::Tensor& weight) {
    if (config.unit_qk_norm && table.cos.defined()) {
      return unit_norm(apply_rope(normed_heads(x, weight, dim, config.rms_eps, pieces.norm), table), config.rms_eps);
    }
    if (!config.norm_after_rope) {
      return apply_rope(normed_heads(x, weight, dim, config.rms_eps, pieces.norm), table);
    }
    const at::Tensor turned = apply_rope(x.view({tokens, -1, dim}), table);
    return normed_heads(turned.flatten(1), weight, dim, config.rms_eps, pieces.norm);
  };
  // What a branch adds; `out` is its own, so it may change in place.
  const auto branch = [&](const at::Tensor& out, const at::Tensor& weight) {
    at::Tensor added = norm(out, weight);
    return config.residual_scale == 1.0 ? added : added.mul_(config.residual_scale);
  };
  const at::Tensor normed = norm(hidden, weights.input_norm);
  if (!config.holds_kv(layer)) {
    const at::Tensor mixed = gated_delta_net(config, layer, weights, normed, batch, attention.states());
    const at::Tensor residual = branch(mixed, weights.attention_out_norm).add_(hidden);
    return branch(feed_forward(config, norm(residual, weights.mlp_norm), weights, pieces), weights.mlp_out_norm)
        .add_(residual);
  }
  AttentionInput input;
  input.layer = config.kv_place(layer);
  input.batch = &batch;
  if (config.is_latent()) {
    project_latent(config, weights, pieces, normed, table, input);
  } else {
    input.q = heads(at::linear(normed, weights.q, weights.q_bias), weights.q_norm);
    if (table.query_scale.defined()) {
      input.q = (input.q.to(at::kFloat) * table.query_scale).to(input.q.scalar_type());
    }
    input.k = heads(at::linear(normed, weights.k, weights.k_bias), weights.k_norm);
    input.v = at::linear(normed, weights.v, weights.v_bias).view({tokens, config.kv_heads, dim});
  }
  input.scale = attention_scale(config);
  input.soft_cap = config.logit_soft_cap;
  input.sinks = weights.sinks;
  if (!config.sliding_window.empty()) input.sliding_window = config.sliding_window.at(layer);
  if (!config.chunk.empty()) input.chunk = config.chunk.at(layer);

  const at::Tensor attended = attention.attend(input);
  at::Tensor output = config.is_latent() ? expanded_outputs(config, weights, attended)
                                         : attended.reshape({tokens, config.query_heads * dim});
  if (weights.output_gate.defined()) {
    output = output * at::linear(normed, weights.output_gate, weights.output_gate_bias).sigmoid();
  }
  const at::Tensor residual =
      branch(at::linear(output, weights.o, weights.o_bias), weights.attention_out_norm).add_(hidden);
  if (!pieces.parallel) attention.added(input, residual);
  const at::Tensor before = pieces.parallel ? normed : norm(residual, weights.mlp_norm);
  // Added to the MLP's output in place, not to the residual stream: backward still needs what the norm has read.
  at::Tensor out = branch(feed_forward(config, before, weights, pieces), weights.mlp_out_norm).add_(residual);
  if (pieces.parallel) attention.added(input, out);
  return out;
}

}  // namespace oscar
