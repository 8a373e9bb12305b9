#include "model/head_projection.h"

#include <ATen/ATen.h>

#include "model/layer.h"

namespace oscar {
namespace {

// Of q or k [T, H d] -> [T, H, d]: over each head, or over the whole projection where the weight is as long.
at::Tensor normed_heads(const at::Tensor& x, const at::Tensor& weight, std::int64_t dim, double eps, NormKind kind) {
  const std::int64_t tokens = x.size(0), heads = x.size(1) / dim;
  if (!weight.defined()) return x.view({tokens, heads, dim});
  if (weight.size(0) == dim) return rms_norm(x.view({tokens, heads, dim}), weight, eps, kind);
  return rms_norm(x, weight, eps, kind).view({tokens, heads, dim});
}

}  // namespace

void project_heads(const ModelConfig& config, std::int64_t layer, const LayerWeights& weights, const Pieces& pieces,
                   const at::Tensor& x, const RopeTable& table, AttentionInput& input) {
  const std::int64_t tokens = x.size(0), dim = config.head_dim_of(layer);
  const double eps = config.rms_eps;
  const auto turned = [&](const at::Tensor& rows, const at::Tensor& weight) {
    if (config.unit_qk_norm && table.cos.defined()) {
      return rms_norm(apply_rope(normed_heads(rows, weight, dim, eps, pieces.norm), table), {}, eps);
    }
    if (!config.norm_after_rope) return apply_rope(normed_heads(rows, weight, dim, eps, pieces.norm), table);
    return normed_heads(apply_rope(rows.view({tokens, -1, dim}), table).flatten(1), weight, dim, eps, pieces.norm);
  };
  input.q = turned(at::linear(x, weights.q, weights.q_bias), weights.q_norm);
  if (table.query_scale.defined()) {
    input.q = (input.q.to(at::kFloat) * table.query_scale).to(input.q.scalar_type());
  }
  const at::Tensor keys = at::linear(x, weights.k, weights.k_bias);
  const at::Tensor values = weights.v.defined() ? at::linear(x, weights.v, weights.v_bias) : keys;
  input.k = turned(keys, weights.k_norm);
  input.v = values.view({tokens, config.kv_heads_of(layer), dim});
  if (config.unit_v_norm) input.v = rms_norm(input.v, {}, eps);
}

}  // namespace oscar
