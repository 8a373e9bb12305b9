#include "attention/basis.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "cache/row_rotation.h"
#include "model/rope_phases.h"

namespace oscar {
namespace {

at::Tensor plain(const at::Tensor& x, at::Device device = at::kCPU) { return x.to(device, at::kFloat).contiguous(); }

// x: [T, H, d]; matrices: [1 or Hkv, d, d], each used by H / Hkv heads. [T, H, d] FP32.
at::Tensor multiply_heads(const at::Tensor& x, const at::Tensor& matrices, std::int64_t kv_heads) {
  const std::int64_t tokens = x.size(0), heads = x.size(1), d = x.size(2);
  if (matrices.size(0) == 1) return at::mm(x.reshape({tokens * heads, d}), matrices[0]).view({tokens, heads, d});
  const std::int64_t gqa_group = heads / kv_heads;
  const at::Tensor by_head =
      x.view({tokens, kv_heads, gqa_group, d}).transpose(0, 1).reshape({kv_heads, tokens * gqa_group, d});
  return at::bmm(by_head, matrices).view({kv_heads, tokens, gqa_group, d}).transpose(0, 1).reshape({tokens, heads, d});
}

}  // namespace

at::Tensor transformed_rows(const at::Tensor& rows, const SideTransform* side, const at::Tensor& rope_phases) {
  if (side == nullptr) return rows.to(at::kCPU, at::kBFloat16).contiguous();
  const at::Tensor forward = plain(side->forward);
  at::Tensor x = plain(rows), mean = side->mean.defined() ? plain(side->mean) : at::Tensor();
  if (side->rotated_mean) {
    if (!rope_phases.defined()) throw std::logic_error("transformed_rows needs the rope_phases of the tokens");
    x = (x - rotated_means(mean, rope_phases)).contiguous();
    mean = at::Tensor();
  }
  const std::int64_t tokens = x.size(0), heads = x.size(1), d = x.size(2);
  at::Tensor out = at::empty({tokens, heads, d}, x.options().dtype(at::kBFloat16));
  const auto* source = x.const_data_ptr<float>();
  auto* target = reinterpret_cast<std::uint16_t*>(out.data_ptr<at::BFloat16>());
  constexpr std::int64_t kRows = 64;
  const std::int64_t blocks = (tokens + kRows - 1) / kRows;
  const std::int64_t item = std::max<std::int64_t>(std::min(kRows, tokens) * d * d, 1);
  const std::int64_t grain = std::max<std::int64_t>((std::int64_t{1} << 20) / item, 1);  // no threads for a few rows
  at::parallel_for(0, blocks * heads, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t head = i % heads, first = i / heads * kRows, at = (first * heads + head) * d;
      const float* matrix = forward.const_data_ptr<float>() + (forward.size(0) == 1 ? 0 : head * d * d);
      const float* centre = mean.defined() ? mean.const_data_ptr<float>() + head * d : nullptr;
      rotate_rows(source + at, std::min(kRows, tokens - first), heads * d, centre, matrix, static_cast<int>(d),
                  target + at, heads * d);
    }
  });
  return out;
}

at::Tensor rotate_queries(const at::Tensor& q, const SideTransform* key, std::int64_t kv_heads) {
  const at::Tensor x = plain(q, q.device());
  if (key == nullptr) return x;
  const at::Tensor& matrices = key->orthogonal() ? key->forward : key->query_side;
  return multiply_heads(x, plain(matrices, q.device()), kv_heads).contiguous();
}

at::Tensor restore_outputs(const at::Tensor& outputs, const SideTransform* value, std::int64_t kv_heads,
                           const at::Tensor& weight_sum) {
  if (value == nullptr) return outputs;
  const at::Device device = outputs.device();
  const at::Tensor back =
      value->orthogonal() ? plain(value->forward, device).transpose(1, 2).contiguous() : plain(value->inverse, device);
  const at::Tensor o = multiply_heads(outputs.contiguous(), back, kv_heads);
  if (!value->mean.defined()) return o;
  const at::Tensor mean = plain(value->mean, device).repeat_interleave(outputs.size(1) / kv_heads, 0);  // [Hq, d]
  return weight_sum.defined() ? o + weight_sum.unsqueeze(-1) * mean : o + mean;
}

at::Tensor logit_shift(const at::Tensor& q, const SideTransform* key, std::int64_t kv_heads, double scale) {
  if (key == nullptr || !key->mean.defined() || key->rotated_mean) return {};
  const at::Tensor mean = plain(key->mean, q.device()).repeat_interleave(q.size(1) / kv_heads, 0);  // [Hq, d]
  return (plain(q, q.device()) * mean).sum(-1).mul_(scale).contiguous();
}

at::Tensor mean_rows(const SideTransform& key, const at::Tensor& rope_phases) {
  const at::Tensor means = rotated_means(key.mean, rope_phases).transpose(0, 1);  // [Hkv, T, d]
  return at::matmul(means, plain(key.forward, means.device()));
}

at::Tensor new_rows(const KvMethod& method, const AttentionInput& input, Side side) {
  const SideTransform* transform = method.transform(input.layer, side);
  const at::Tensor& rows = side == Side::kKey ? input.k : input.v;
  if (transform == nullptr || !transform->rotated_mean) return transformed_rows(rows, transform);
  std::vector<at::Tensor> rope_phases;
  for (std::size_t s = 0; s < input.batch->lengths.size(); ++s) {
    rope_phases.push_back(method.rope_phases->rows(input.batch->starts[s], input.batch->lengths[s]));
  }
  return transformed_rows(rows, transform, at::cat(rope_phases));
}

NewRows new_rows(const KvMethod& method, const AttentionInput& input) {
  const at::Tensor keys = new_rows(method, input, Side::kKey);
  return {keys, method.one_vector ? keys : new_rows(method, input, Side::kValue)};
}

CacheQueries cache_queries(const KvMethod& method, const AttentionInput& input, at::Device device) {
  const std::int64_t kv_heads = input.k.size(1);
  const SideTransform* key = method.transform(input.layer, Side::kKey);
  const at::Tensor model_q = input.q.to(device);
  CacheQueries x;
  x.q = rotate_queries(model_q, key, kv_heads);
  x.output = at::empty_like(x.q);
  if (input.soft_cap > 0.0 || input.sinks.defined()) x.shift = logit_shift(model_q, key, kv_heads, input.scale);
  if (input.sinks.defined()) {
    x.sinks = input.sinks.to(device, at::kFloat).contiguous();
    x.weight_sum = at::empty({x.q.size(0), x.q.size(1)}, x.q.options());
  }
  return x;
}

void add_position_queries(CacheQueries& queries, const KvMethod& method, const AttentionInput& input,
                          at::Device device) {
  const SideTransform* key = method.transform(input.layer, Side::kKey);
  if (key == nullptr || !key->rotated_mean) return;
  std::int64_t end = 0;
  for (std::size_t s = 0; s < input.batch->lengths.size(); ++s) {
    end = std::max(end, input.batch->starts[s] + input.batch->lengths[s]);
  }
  queries.positions = phase_queries(input.q, key->mean).to(device).contiguous();
  queries.rope_phases = method.rope_phases->rows(0, end);
}

at::Tensor model_outputs(const KvMethod& method, const AttentionInput& input, const CacheQueries& queries) {
  const SideTransform* value = method.transform(input.layer, Side::kValue);
  return restore_outputs(queries.output, value, input.k.size(1), queries.weight_sum).to(input.q.options());
}

}  // namespace oscar
