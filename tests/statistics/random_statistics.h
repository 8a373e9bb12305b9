// Statistics of random rows, for tests that need a file but no model.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/hash.h"
#include "collect/accumulator.h"
#include "collect/row_sample.h"
#include "statistics/statistics.h"

namespace oscar {

struct RandomRows {
  std::int64_t layers = 2, query_heads = 4, kv_heads = 2, head_dim = 8, tokens = 50;
  std::int64_t rows = 16;
  int seed = 1;  // also names the prompt set
};

inline Statistics random_statistics(const RandomRows& r) {
  at::manual_seed(0);  // the weights are the model's: equal for every prompt set
  const at::Tensor wo = at::randn({32, r.query_heads * r.head_dim});
  at::manual_seed(r.seed);
  Statistics s;
  s.model_fingerprint = "v2:sha256:" + sha256_hex("model");
  s.model_name = "random";
  s.architecture = "Qwen3ForCausalLM";
  s.query_heads = r.query_heads;
  s.kv_heads = r.kv_heads;
  s.head_dim = r.head_dim;
  s.hidden = 32;
  s.tokens = r.tokens;
  s.rope_frequency = at::zeros({s.head_dim / 2}, at::kDouble);
  s.attention_scale = 1.0 / std::sqrt(static_cast<double>(s.head_dim));
  s.max_position = 4096;
  s.embedding_energy = at::tensor({12.5, static_cast<double>(r.tokens)}, at::kDouble);
  const std::string sha = sha256_hex(std::to_string(r.seed));
  s.metadata = {{"tool", {{"name", "oscar-collect"}, {"version", "0.0.0"}}},
                {"rows", {{"requested", r.rows}, {"kept", std::min(r.rows, r.tokens)}}},
                {"parts", {{{"prompts", {{"sha256", sha}}}, {"tokens", r.tokens}, {"sequences", 1}}}}};
  const auto sampled = sample_sequences(0, sha, {{0, r.tokens}}, r.rows);
  for (std::int64_t i = 0; i < r.layers; ++i) {
    const at::Tensor q = at::randn({r.tokens, r.query_heads, r.head_dim});
    const at::Tensor k = at::randn({r.tokens, r.kv_heads, r.head_dim}) + 0.5;
    const at::Tensor v = at::randn({r.tokens, r.kv_heads, r.head_dim});
    const at::Tensor o = at::randn({r.tokens, r.query_heads, r.head_dim});
    MomentAccumulator moments(r.kv_heads, r.head_dim, at::kCPU);
    moments.add(q, k, v, o);
    LayerMoments& layer = s.layers.emplace_back();
    moments.finish(layer);
    EnergyAccumulator energy(layer.q_gram, at::kCPU);
    energy.add(k, v);
    layer.energy_gram = energy.energy_gram();
    layer.wo_gram = output_projection_gram(wo, r.kv_heads, r.head_dim);
    layer.pre_q_gram = layer.q_gram.clone();  // nothing turns: rope_frequency is zero
    layer.pre_k_gram = layer.k_gram.clone();
    layer.pre_k_sum = layer.k_sum.clone();
    const double n = static_cast<double>(r.tokens);
    layer.attention_residual = at::tensor({88.5, n, 0.0, 0.0}, at::kDouble).view({2, 2});
    layer.residual_energy = at::tensor({99.5, static_cast<double>(r.tokens)}, at::kDouble);
    std::vector<at::Tensor> rows_q, rows_k, rows_v;
    for (const SampledToken& token : sampled) {
      rows_q.push_back(q[token.token]);
      rows_k.push_back(k[token.token]);
      rows_v.push_back(v[token.token]);
      layer.row_priority.push_back(token.priority);
      layer.row_position.push_back(token.position);
    }
    layer.rows_q = at::stack(rows_q);
    layer.rows_k = at::stack(rows_k);
    layer.rows_v = at::stack(rows_v);
  }
  return s;
}

}  // namespace oscar
