#include "collect/moment_warm_up.h"

#include <ATen/ATen.h>

#include "collect/accumulator.h"
#include "collect/late_number.h"
#include "collect/layer_copy.h"
#include "collect/pre_rope_moments.h"
#include "collect/residual_energy.h"
#include "collect/unrotation.h"

namespace oscar {

void warm_up_moments(const ModelConfig& config, const FarPairs& pairs, at::ScalarType dtype, at::Device device) {
  const std::int64_t heads = config.query_heads, kv_heads = config.kv_heads, d = config.head_dim;
  const std::int64_t tokens = 64 + (pairs.enabled ? pairs.sink + pairs.recent : 0);
  const at::TensorOptions options = at::TensorOptions(dtype).device(device);
  const SequenceBatch batch{.ids = {0}, .lengths = {tokens}, .starts = {0}};
  AttentionInput input;
  input.batch = &batch;
  input.q = at::ones({tokens, heads, d}, options);
  input.k = input.v = at::ones({tokens, kv_heads, d}, options);
  const at::Tensor o_weight = at::eye(d, options).repeat({1, heads});  // the columns of each head form a regular matrix

  LayerMoments out;
  MomentAccumulator moments(kv_heads, d, device);
  moments.add(input.q, at::cat({input.k, input.v}, 1), input.q);
  LateNumber(moments.trace()).value();
  moments.finish(out);
  Unrotation unrotation(common_rope(config), device);
  const Unrotation::Rows& rows = unrotation.rows_of(batch);
  PreRopeAccumulator before(kv_heads, d, device);
  before.begin_layer(nullptr);
  before.add(input, rows);
  before.finish(out);
  ResidualAccumulator residual(pairs, device);
  residual.begin_layer(nullptr);
  const at::Tensor hidden = at::ones({tokens, config.hidden}, options);
  residual.add(batch, hidden, hidden);
  residual.finish(out);
  FarPairAccumulator far(heads, kv_heads, d, pairs, device);
  far.begin_layer(o_weight, nullptr);
  far.add(input, input.q, rows);
  far.finish(out);
  EnergyAccumulator energy(out.q_gram, device);
  energy.add(input.k, input.v);
  out.energy_gram = energy.energy_gram();
  out.wo_gram = output_projection_gram(o_weight, kv_heads, d);
  const at::Tensor some = at::zeros({1}, at::TensorOptions(at::kLong).device(device));
  out.rows_q = at::zeros({1, heads, d}, options.dtype(at::kFloat));
  out.rows_q.index_copy_(0, some, input.q.index_select(0, some).to(at::kFloat));
  LayerCopier().to_cpu(out);
}

}  // namespace oscar
