// Statistics of given rows of one layer, as collect would write them.
#pragma once

#include <ATen/ATen.h>

#include <cmath>

#include "collect/accumulator.h"
#include "statistics/statistics.h"

namespace oscar {

struct MadeRows {
  at::Tensor q, k, v;   // [T, Hq, d], [T, Hkv, d] x2
  at::Tensor o_weight;  // [hidden, Hq d]
};

inline MadeRows random_made_rows(std::int64_t tokens, std::int64_t query_heads, std::int64_t kv_heads, std::int64_t d) {
  const at::Tensor sizes = at::linspace(0.2, 3.0, d);
  return {at::randn({tokens, query_heads, d}) * sizes.flip(0), at::randn({tokens, kv_heads, d}) * sizes,
          at::randn({tokens, kv_heads, d}), at::randn({2 * d, query_heads * d})};
}

// The attention output plays no part in metric-aware fits: v stands in for it.
inline Statistics made_statistics(const std::vector<MadeRows>& layers) {
  Statistics s;
  const MadeRows& first = layers.front();
  s.model_fingerprint = "v2:sha256:" + std::string(64, 'b');
  s.model_name = "made";
  s.architecture = "Qwen3ForCausalLM";
  s.tokens = first.k.size(0);
  s.query_heads = first.q.size(1), s.kv_heads = first.k.size(1), s.head_dim = first.k.size(2);
  s.hidden = first.o_weight.size(0);
  s.rope_frequency = at::zeros({s.head_dim / 2}, at::kDouble);
  s.attention_scale = 1.0 / std::sqrt(static_cast<double>(s.head_dim));
  s.max_position = 4096;
  for (const MadeRows& rows : layers) {
    MomentAccumulator moments(s.kv_heads, s.head_dim, at::kCPU);
    const at::Tensor o = rows.v.repeat_interleave(s.query_heads / s.kv_heads, 1);
    moments.add(rows.q, rows.k, rows.v, o);
    LayerMoments& layer = s.layers.emplace_back();
    moments.finish(layer);
    layer.energy_gram = layer.v_gram.clone();
    layer.wo_gram = output_projection_gram(rows.o_weight, s.kv_heads, s.head_dim);
    layer.pre_q_gram = layer.q_gram.clone();  // nothing turns: rope_frequency is zero
    layer.pre_k_gram = layer.k_gram.clone();
    layer.pre_k_sum = layer.k_sum.clone();
    const double n = static_cast<double>(s.tokens);
    layer.residual_energy = at::tensor({100.0 * n, n}, at::kDouble);
    layer.attention_residual = at::tensor({100.0 * n, n, 0.0, 0.0}, at::kDouble).view({2, 2});
    const std::int64_t kept = std::min<std::int64_t>(s.tokens, 128);
    layer.rows_q = rows.q.narrow(0, 0, kept).to(at::kFloat).contiguous();
    layer.rows_k = rows.k.narrow(0, 0, kept).to(at::kFloat).contiguous();
    layer.rows_v = rows.v.narrow(0, 0, kept).to(at::kFloat).contiguous();
    for (std::int64_t i = 0; i < kept; ++i) {
      layer.row_priority.push_back(static_cast<std::uint64_t>(i));
      layer.row_position.push_back(100 + i);
    }
  }
  return s;
}

}  // namespace oscar
