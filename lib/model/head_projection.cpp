#include "model/head_projection.h"

#include <ATen/ATen.h>

#include "model/layer.h"

namespace oscar {
namespace {

// Norms q or k [T, H d] -> [T, H, d], over each head. A weight of full length norms the full projection.
at::Tensor normed_heads(const at::Tensor& x, const at::Tensor& weight, std::int64_t dim, double eps, NormKind kind) {
  const std::int64_t tokens = x.size(0), heads = x.size(1) / dim;
  if (!weight.defined()) return x.view({tokens, heads, dim});
  if (weight.size(0) == dim) return rms_norm(x.view({tokens, heads, dim}), weight, eps, kind);
  return rms_norm(x, weight, eps, kind).view({tokens, heads, dim});
}

}  // namespace

at::Tensor wanted(const at::Tensor& x, const at::Tensor& rows) {
  return rows.defined() && x.defined() ? x.index_select(0, rows) : x;
}

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

}  // namespace oscar
