#include "model/latent_attention.h"

#include <ATen/ATen.h>

#include "model/layer.h"

namespace oscar {
namespace {

constexpr double kLatentEps = 1e-6;  // for norms of latents, independent of rms_norm_eps

// W_UK [Hq, n, r] and W_UV [Hq, v, r].
struct UpProjections {
  at::Tensor key, value;
};

UpProjections up_projections(const ModelConfig& config, const LayerWeights& weights) {
  const LatentAttention& l = config.latent;
  const at::Tensor heads = weights.kv_b.view({config.query_heads, l.nope_dim + l.value_dim, l.rank});
  return {heads.narrow(1, 0, l.nope_dim), heads.narrow(1, l.nope_dim, l.value_dim)};
}

}  // namespace

void project_latent(const ModelConfig& config, const LayerWeights& weights, const Pieces& pieces, const at::Tensor& x,
                    const RopeTable& table, AttentionInput& input) {
  const LatentAttention& l = config.latent;
  const std::int64_t tokens = x.size(0);
  at::Tensor from = x;
  if (weights.q_a.defined()) {
    from = rms_norm(at::linear(x, weights.q_a, weights.q_a_bias), weights.q_a_norm, kLatentEps, pieces.norm);
  }
  const at::Tensor q = at::linear(from, weights.q).view({tokens, config.query_heads, l.query_dim()});
  const at::Tensor nope = q.narrow(2, 0, l.nope_dim).transpose(0, 1);  // [Hq, T, n]
  const at::Tensor absorbed = at::bmm(nope, up_projections(config, weights).key).transpose(0, 1);
  input.q = at::cat({absorbed, apply_rope(q.narrow(2, l.nope_dim, l.rotated), table)}, 2);

  const at::Tensor kv = at::linear(x, weights.kv_a, weights.kv_a_bias);  // [T, r+R]
  const at::Tensor latent = rms_norm(kv.narrow(1, 0, l.rank), weights.kv_a_norm, kLatentEps, pieces.norm).unsqueeze(1);
  const at::Tensor rotated = kv.narrow(1, l.rank, l.rotated).unsqueeze(1);
  input.k = at::cat({latent, apply_rope(rotated, table)}, 2);
  input.v = input.k;  // outputs in the RoPE channels are not used: expanded_outputs()
}

at::Tensor expanded_outputs(const ModelConfig& config, const LayerWeights& weights, const at::Tensor& output) {
  const at::Tensor latent = output.narrow(2, 0, config.latent.rank).transpose(0, 1);  // [Hq, T, r]
  const at::Tensor values = at::bmm(latent, up_projections(config, weights).value.transpose(1, 2));
  return values.transpose(0, 1).reshape({output.size(0), -1});
}

at::Tensor read_outputs(const ModelConfig& config, const LayerWeights& weights, const at::Tensor& output) {
  if (!config.is_latent()) return output;
  return expanded_outputs(config, weights, output.to(weights.kv_b.options()))
      .view({output.size(0), config.query_heads, config.latent.value_dim});
}

at::Tensor output_weight(const ModelConfig& config, const LayerWeights& weights) {
  if (!config.is_latent()) return weights.o;
  const LatentAttention& l = config.latent;
  const at::Tensor by_head = weights.o.view({config.hidden, config.query_heads, l.value_dim}).transpose(0, 1);
  // FP32, so that the absorbed weight is as accurate as the run's widest type.
  const at::Tensor product =
      at::bmm(by_head.to(at::kFloat), up_projections(config, weights).value.to(at::kFloat));  // [Hq, hidden, r]
  return at::constant_pad_nd(product, {0, l.rotated}).transpose(0, 1).reshape({config.hidden, -1});
}

}  // namespace oscar
