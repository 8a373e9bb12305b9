#include "model/layer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "model/experts.h"
#include "model/gated_delta_net.h"
#include "model/latent_attention.h"
#include "model/local_attention.h"

namespace oscar {
namespace {

// Norms q or k [T, H d] -> [T, H, d], over each head. A weight of full length norms the full projection.
at::Tensor normed_heads(const at::Tensor& x, const at::Tensor& weight, std::int64_t dim, double eps, NormKind kind) {
  const std::int64_t tokens = x.size(0), heads = x.size(1) / dim;
  if (!weight.defined()) return x.view({tokens, heads, dim});
  if (weight.size(0) == dim) return rms_norm(x.view({tokens, heads, dim}), weight, eps, kind);
  return rms_norm(x, weight, eps, kind).view({tokens, heads, dim});
}

// The requested rows of x. rows: undefined (all) or [A] int64 on the device of x. x may be undefined.
at::Tensor wanted(const at::Tensor& x, const at::Tensor& rows) {
  return rows.defined() && x.defined() ? x.index_select(0, rows) : x;
}

// x [T, hidden] after the layer's norm -> q [A, Hq, d], k and v [T, Hkv, d] of `input`, with the head sizes of this
// layer. Applies projections with biases, head norms, RoPE and the position scale of queries. `table` must match the
// layer and the positions. If the layer does not project values, v is the projection of k before norm and RoPE
// (ModelConfig::keys_as_values).
// rows: undefined, or [A] int64 on the device of x: the tokens that need queries.
void project_heads(const ModelConfig& config, std::int64_t layer, const LayerWeights& weights, const Pieces& pieces,
                   const at::Tensor& x, const at::Tensor& rows, const RopeTable& table, AttentionInput& input) {
  const std::int64_t dim = config.head_dim_of(layer);
  const double eps = config.rms_eps;
  const auto norm_and_rope = [&](const at::Tensor& y, const at::Tensor& weight, const RopeTable& angles) {
    if (config.unit_qk_norm && angles.cos.defined()) {
      return rms_norm(apply_rope(normed_heads(y, weight, dim, eps, pieces.norm), angles), {}, eps);
    }
    if (!config.norm_after_rope) return apply_rope(normed_heads(y, weight, dim, eps, pieces.norm), angles);
    return normed_heads(apply_rope(y.view({y.size(0), -1, dim}), angles).flatten(1), weight, dim, eps, pieces.norm);
  };
  const RopeTable table_of_rows{wanted(table.cos, rows), wanted(table.sin, rows), table.interleaved,
                                wanted(table.query_scale, rows)};
  const at::Tensor narrow = x.to(weights.q.scalar_type());  // once for all products
  const auto projected = [&](const at::Tensor& in, const at::Tensor& weight, const at::Tensor& bias) {
    return product(in, weight, bias, x.scalar_type());
  };
  input.q = norm_and_rope(projected(wanted(narrow, rows), weights.q, weights.q_bias), weights.q_norm, table_of_rows);
  if (table_of_rows.query_scale.defined()) {
    input.q = (input.q.to(at::kFloat) * table_of_rows.query_scale).to(input.q.scalar_type());
  }
  if (!weights.k.defined()) return;  // the layer reads another layer's cache
  const at::Tensor keys = projected(narrow, weights.k, weights.k_bias);
  const at::Tensor values = weights.v.defined() ? projected(narrow, weights.v, weights.v_bias) : keys;
  input.k = norm_and_rope(keys, weights.k_norm, table);
  input.v = values.view({x.size(0), config.kv_heads_of(layer), dim});
  if (config.unit_v_norm) input.v = rms_norm(input.v, {}, eps);
}

at::Tensor mlp_block(const at::Tensor& rows, const LayerWeights& w, Activation activation) {
  const at::ScalarType inner = w.gate.scalar_type();
  const at::Tensor x = rows.to(inner);
  at::Tensor gate = product(x, w.gate, w.gate_bias, inner);
  activate_(gate, activation);
  gate.mul_(product(x, w.up, w.up_bias, inner));
  return product(gate, w.down, w.down_bias, rows.scalar_type());
}

// Experts beside the MLP, which read the residual stream directly.
at::Tensor experts_beside(const ModelConfig& config, const at::Tensor& x, const at::Tensor& residual,
                          const LayerWeights& weights, const Pieces& pieces) {
  const auto norm = [&](const at::Tensor& rows, const at::Tensor& weight) {
    return rms_norm(rows, weight, config.rms_eps, pieces.norm);
  };
  const double root = 1.0 / std::sqrt(static_cast<double>(config.hidden));
  const at::Tensor routed = norm(residual, {}).mul_(weights.router_scale).mul_(root);
  const at::Tensor dense = norm(gated_mlp(x, weights, config.activation), weights.dense_out_norm);
  const at::Tensor experts =
      expert_mlp(norm(residual, weights.experts_norm), routed, weights, config.experts, pieces, config.activation);
  return dense + norm(experts, weights.experts_out_norm);
}

// The MLP, or experts plus the MLP if there is one. x is the normed residual stream.
at::Tensor feed_forward(const ModelConfig& config, const at::Tensor& x, const at::Tensor& residual,
                        const LayerWeights& weights, const Pieces& pieces) {
  if (!weights.router.defined()) return gated_mlp(x, weights, config.activation);
  if (weights.experts_norm.defined()) return experts_beside(config, x, residual, weights, pieces);
  at::Tensor out = expert_mlp(x, x, weights, config.experts, pieces, config.activation);
  if (!weights.gate.defined()) return out;
  const at::Tensor shared = gated_mlp(x, weights, config.activation);
  if (!weights.shared_weight.defined()) return out.add_(shared);
  return out.add_(at::linear(x, weights.shared_weight).sigmoid_() * shared);
}

// Reads another layer's keys and values, or provides this layer's to others.
void exchange(const ModelConfig& config, std::int64_t layer, CarriedRows& carried, AttentionInput& input) {
  if (!config.reads_another(layer)) {
    carried.k = input.k, carried.v = input.v;
    return;
  }
  input.k = carried.k, input.v = carried.v;
  if (config.is_local(layer)) return;
  input.layer = config.kv_place(config.shared.source[static_cast<std::size_t>(layer)]);
  input.reader = layer;
}

// Adds the contribution of the layer's token embedding to y [A, hidden].
at::Tensor with_layer_input(const ModelConfig& config, const at::Tensor& y, const at::Tensor& layer_input,
                            const LayerWeights& weights, NormKind kind) {
  at::Tensor gate = at::linear(y, weights.input_gate);
  activate_(gate, config.activation);
  const at::Tensor added = at::linear(gate.mul_(layer_input), weights.input_projection);
  return rms_norm(added, weights.input_out_norm, config.rms_eps, kind).add_(y);
}

// The output of a layer's mixer for `normed`, before W_O. Layers with a KV cache use `attention`, with queries only for
// the requested rows.
at::Tensor attended(const ModelConfig& config, std::int64_t layer, const LayerWeights& weights, const Pieces& pieces,
                    const at::Tensor& normed, const at::Tensor& rows, const RopeTable& table, Attention& attention,
                    CarriedRows* carried, AttentionInput& input) {
  const std::int64_t width = config.query_heads * config.head_dim_of(layer);
  const bool local = config.is_local(layer);
  if (config.is_latent()) {
    project_latent(config, weights, pieces, normed, table, input);
    input.q = wanted(input.q, rows), input.q_rope = wanted(input.q_rope, rows);
  } else {
    project_heads(config, layer, weights, pieces, normed, local ? at::Tensor() : rows, table, input);
  }
  if (carried != nullptr) exchange(config, layer, *carried, input);
  input.scale = attention_scale(config);
  input.soft_cap = config.logit_soft_cap;
  input.sinks = weights.sinks;
  if (!config.sliding_window.empty()) input.sliding_window = config.sliding_window.at(layer);
  if (!config.chunk.empty()) input.chunk = config.chunk.at(layer);
  if (local) return wanted(local_attention(input, layer, attention.states()).reshape({-1, width}), rows);
  return read_outputs(config, weights, attention.attend(input)).flatten(1);
}

}  // namespace

at::Tensor product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, at::ScalarType result) {
  const at::ScalarType inner = weight.scalar_type();
  if (!bias.defined() || bias.scalar_type() == inner) return at::linear(x.to(inner), weight, bias).to(result);
  return (at::linear(x.to(inner), weight) + bias).to(result);
}

void activate_(at::Tensor& gate, Activation activation) {
  if (activation == Activation::kSilu) {
    at::silu_(gate);
  } else {
    at::gelu_(gate, "tanh");
  }
}

at::Tensor gated_mlp(const at::Tensor& x, const LayerWeights& weights, Activation activation) {
  const std::int64_t tokens = x.size(0), block = mlp_tokens(x.device());
  if (tokens <= block) return mlp_block(x, weights, activation);
  at::Tensor out = at::empty_like(x);
  for (std::int64_t start = 0; start < tokens; start += block) {
    const std::int64_t count = std::min(block, tokens - start);
    out.narrow(0, start, count).copy_(mlp_block(x.narrow(0, start, count), weights, activation));
  }
  return out;
}

double attention_scale(const ModelConfig& config) {
  return config.attention_scale > 0.0 ? config.attention_scale : 1.0 / std::sqrt(static_cast<double>(config.head_dim));
}

at::Tensor decoder_layer(const ModelConfig& config, std::int64_t layer, const LayerWeights& weights,
                         const at::Tensor& hidden, const SequenceBatch& batch, const RopeTable& table,
                         Attention& attention, const Pieces& pieces, const at::Tensor& asked, CarriedRows* carried) {
  const at::Tensor rows = asked.defined() ? asked.to(hidden.device()) : asked;
  const auto norm = [&](const at::Tensor& x, const at::Tensor& weight) {
    return weight.defined() ? rms_norm(x, weight, config.rms_eps, pieces.norm) : x;
  };
  // The addition to the residual stream. `out` is a temporary, so it may change in place.
  const auto branch = [&](const at::Tensor& out, const at::Tensor& weight) {
    at::Tensor added = norm(out, weight);
    return config.residual_scale == 1.0 ? added : added.mul_(config.residual_scale);
  };
  const at::Tensor normed = norm(hidden, weights.input_norm), asking = wanted(normed, rows);
  const bool observed = config.holds_kv(layer);
  AttentionInput input{.layer = observed ? config.kv_place(layer) : -1,
                       .batch = &batch,
                       .asked = config.is_local(layer) ? at::Tensor() : asked};
  at::Tensor mixed;
  if (config.is_linear(layer)) {
    mixed = wanted(gated_delta_net(config, layer, weights, normed, batch, attention.states()), rows);
  } else {
    at::Tensor output = attended(config, layer, weights, pieces, normed, rows, table, attention, carried, input);
    if (weights.output_gate.defined()) {
      output = output * at::linear(asking, weights.output_gate, weights.output_gate_bias).sigmoid();
    }
    mixed = product(output, weights.o, weights.o_bias, hidden.scalar_type());
  }
  const at::Tensor residual = branch(mixed, weights.attention_out_norm).add_(wanted(hidden, rows));
  const at::Tensor unnormed = weights.attention_out_norm.defined() ? mixed : at::Tensor();
  if (observed && !pieces.parallel) attention.added(input, residual, unnormed);
  const at::Tensor before = pieces.parallel ? asking : norm(residual, weights.mlp_norm);
  // Added in place to the MLP's output, not to the residual stream, because backward still needs the norm's input.
  at::Tensor out = branch(feed_forward(config, before, residual, weights, pieces), weights.mlp_out_norm).add_(residual);
  if (weights.input_gate.defined()) {
    out = with_layer_input(config, out, wanted(carried->layer_input, rows), weights, pieces.norm);
  }
  if (weights.layer_scalar.defined()) out.mul_(weights.layer_scalar);
  if (observed && pieces.parallel) attention.added(input, out, unnormed);
  return out;
}

}  // namespace oscar
