#include "attention/basis.h"

#include <ATen/ATen.h>

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

}  // namespace oscar
