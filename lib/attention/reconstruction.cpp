#include "attention/prefill_core.h"

#include <ATen/ATen.h>

#include "attention/begin_step.h"
#include "attention/device_decoded_rows.h"
#include "model/rope_phases.h"

namespace oscar {
namespace {

// x: [Hkv, T, d] in the cache basis; back: [1 or Hkv, d, d]. rope_phases: [T, d], for a rotated mean.
at::Tensor to_model_basis(const at::Tensor& x, const SideTransform& t, Side side, const at::Tensor& rope_phases) {
  if (!x.defined()) return x;
  const bool key = side == Side::kKey;
  at::Tensor back = (t.orthogonal() ? t.forward : t.back(side)).to(x.device(), at::kFloat);
  if (key || t.orthogonal()) back = back.transpose(1, 2);  // q Q x^T = q (x Q^T)^T
  at::Tensor rows = at::matmul(x, back);
  if (t.rotated_mean) return rows + rotated_means(t.mean, rope_phases).transpose(0, 1).to(x.device());
  if (t.mean.defined()) rows = rows + t.mean.to(x.device(), at::kFloat).unsqueeze(1);
  return rows;
}

}  // namespace

CachedRows decoded_rows(const KvMethod& method, std::int64_t layer, Side side, const at::Tensor& rows) {
  const SideTransform* transform = method.transform(layer, side);
  const bool coded = method.quantized_at(layer), on_device = rows.is_cuda();
  const bool by_kernels = coded && method.paged();
  // The kernels are not built for the long rows of latent attention: the CPU makes them.
  if (on_device && by_kernels && method.rope_dim == 0) return decoded_rows_on_device(method, layer, side, rows);
  at::Tensor stored;  // [T, Hkv, d] BF16
  if (on_device && !by_kernels && transform == nullptr) {
    stored = rows.to(at::kBFloat16);
  } else {
    const bool rotated = transform != nullptr && transform->rotated_mean;
    stored = transformed_rows(rows, transform, rotated ? method.rope_phases->rows(0, rows.size(0)) : at::Tensor());
  }
  stored = stored.to(at::kFloat);
  const auto heads_first = [&](const at::Tensor& x) { return x.transpose(0, 1).contiguous().to(rows.device()); };
  CachedRows cached{heads_first(stored), {}, method.windows_of(side)};
  if (!coded) return cached;
  cached.coded = heads_first(method.coder->code(method, layer, side, stored));
  return cached;
}

CachedRows decoded_model_rows(const KvMethod& method, std::int64_t layer, Side side, const at::Tensor& rows) {
  CachedRows cached = decoded_rows(method, layer, side, rows);
  const SideTransform* transform = method.transform(layer, side);
  at::Tensor rope_phases;
  if (transform != nullptr && transform->rotated_mean) rope_phases = method.rope_phases->rows(0, rows.size(0));
  if (transform == nullptr) return cached;
  cached.plain = to_model_basis(cached.plain, *transform, side, rope_phases);
  cached.coded = to_model_basis(cached.coded, *transform, side, rope_phases);
  return cached;
}

}  // namespace oscar
