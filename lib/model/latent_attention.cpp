#include "model/latent_attention.h"

#include <ATen/ATen.h>

#include "model/layer.h"

namespace oscar {
namespace {

constexpr double kLatentEps = 1e-6;  // for norms of latents, independent of rms_norm_eps

// Rows of W_UK [Hq, n, r] or W_UV [Hq, v, r].
at::Tensor up_projection(const ModelConfig& config, const LayerWeights& weights, bool key) {
  const LatentAttention& l = config.latent;
  const at::Tensor heads = weights.kv_b.view({config.query_heads, l.nope_dim + l.value_dim, config.head_dim});
  return key ? heads.narrow(1, 0, l.nope_dim) : heads.narrow(1, l.nope_dim, l.value_dim);
}

}  // namespace

void project_latent(const ModelConfig& config, const LayerWeights& weights, const Pieces& pieces, const at::Tensor& x,
                    const RopeTable& table, AttentionInput& input) {
  const LatentAttention& l = config.latent;
  const auto projected = [&](const at::Tensor& in, const at::Tensor& weight, const at::Tensor& bias) {
    return product(in, weight, bias, x.scalar_type());
  };
  at::Tensor from = x;
  if (weights.q_a.defined()) {
    from = rms_norm(projected(x, weights.q_a, weights.q_a_bias), weights.q_a_norm, kLatentEps, pieces.norm);
  }
  const at::Tensor q = projected(from, weights.q, {}).view({x.size(0), config.query_heads, l.query_dim()});
  const at::Tensor nope = q.narrow(2, 0, l.nope_dim).transpose(0, 1);  // [Hq, T, n]
  input.q = at::bmm(nope, up_projection(config, weights, true)).transpose(0, 1).contiguous();
  input.q_rope = apply_rope(q.narrow(2, l.nope_dim, l.rope_dim), table);
  const at::Tensor kv = projected(x, weights.kv_a, weights.kv_a_bias).unsqueeze(1);  // [T, 1, r + R]
  const at::Tensor latent = kv.narrow(2, 0, config.head_dim).contiguous();
  input.k = input.v = rms_norm(latent, weights.kv_a_norm, kLatentEps, pieces.norm);
  input.k_rope = apply_rope(kv.narrow(2, config.head_dim, l.rope_dim), table);
}

at::Tensor read_outputs(const ModelConfig& config, const LayerWeights& weights, const at::Tensor& output) {
  if (!config.is_latent()) return output;
  const at::Tensor by_head = output.to(weights.kv_b.options()).transpose(0, 1);  // [Hq, T, r]
  return at::bmm(by_head, up_projection(config, weights, false).transpose(1, 2)).transpose(0, 1);
}

at::Tensor output_weight(const ModelConfig& config, const LayerWeights& weights) {
  if (!config.is_latent()) return weights.o;
  const at::Tensor by_head = weights.o.view({config.hidden, config.query_heads, config.latent.value_dim});
  const at::Tensor values = up_projection(config, weights, false).to(at::kFloat);
  return at::bmm(by_head.transpose(0, 1).to(at::kFloat), values).transpose(0, 1).reshape({config.hidden, -1});
}

}  // namespace oscar
