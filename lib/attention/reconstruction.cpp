#include "attention/reconstruction.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "attention/basis.h"
#include "attention/device_rows.h"
#include "base/errors.h"
#include "model/rope_phases.h"

namespace oscar {
namespace {

// decode(encode(row)) of the rows [begin, end) of rows [T, Hkv, d] FP32; others are left alone. steps: undefined, or
// zeros [T, Hkv, G] for the step between levels in each run of channels that shares a scale.
at::Tensor quantised_rows(const KvMethod& method, std::int64_t layer, Side side, const at::Tensor& rows,
                          std::int64_t begin, std::int64_t end, at::Tensor& steps) {
  const std::int64_t heads = rows.size(1), d = rows.size(2), runs = steps.defined() ? steps.size(2) : 0;
  at::Tensor out = rows.clone();
  float* step = steps.defined() ? steps.mutable_data_ptr<float>() : nullptr;
  constexpr std::int64_t kRows = 64;
  const std::int64_t blocks = (std::max<std::int64_t>(end - begin, 0) + kRows - 1) / kRows;
  at::parallel_for(0, blocks * heads, 1, [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t i = from; i < to; ++i) {
      const std::int64_t head = i % heads, first = begin + i / heads * kRows, row = first * heads + head;
      try {
        quantise_rows(method.codec(layer, side, head), rows.const_data_ptr<float>() + row * d,
                      std::min(kRows, end - first), heads * d, out.data_ptr<float>() + row * d, heads * d,
                      step != nullptr ? step + row * runs : nullptr, heads * runs);
      } catch (const NumericalError& e) {
        throw NumericalError("layer " + std::to_string(layer) + ", KV head " + std::to_string(head) +
                             (side == Side::kKey ? ", keys" : ", values") + " from token " + std::to_string(first) +
                             " on: " + e.what());
      }
    }
  });
  return out;
}

// x: [Hkv, T, d] of the cache's basis; back: [1 or Hkv, d, d].
// rope_phases: [T, d], for a rotated mean.
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
  const bool rotated = transform != nullptr && transform->rotated_mean;
  const Encoder encoder = side == Side::kKey ? method.key_encoder : method.value_encoder;
  const bool with_noise = method.logit_correction && side == Side::kKey && method.quantised_at(layer);
  // The kernels have no encoder feedback, give no steps, and are not built for the long vector of latent attention:
  // such rows are made on the CPU.
  const bool long_codes = method.one_vector && method.quantised_at(layer);
  if (rows.is_cuda() && !with_noise && !long_codes &&
      (method.engine || method.codebooks || encoder != Encoder::kFeedback)) {
    return decoded_rows_on_device(method, layer, side, rows);
  }
  const at::Tensor rope_phases = rotated ? method.rope_phases->rows(0, rows.size(0)) : at::Tensor();
  const at::Tensor stored = transformed_rows(rows, transform, rope_phases).to(at::kFloat);
  const auto heads_first = [&](const at::Tensor& x) { return x.transpose(0, 1).contiguous().to(rows.device()); };
  CachedRows cached{heads_first(stored), {}, method.windows_of(side)};
  if (!method.quantised_at(layer)) return cached;
  at::Tensor noise;
  if (method.engine) {
    cached.coded = heads_first(method.engine->reconstruct(side, stored));
    if (with_noise) noise = method.engine->added_variance(side, stored);
  } else if (method.codebooks) {
    cached.coded = heads_first(method.codebooks->reconstruct(layer, side, stored));
    if (with_noise) noise = method.codebooks->added_variance(layer, stored);
  } else {
    const std::int64_t end = cached.windows.quantised_end(stored.size(0));
    at::Tensor steps;
    if (with_noise) {
      const RowCode& code = method.code(layer, side);
      steps = at::zeros({stored.size(0), stored.size(1), code.head_dim / code.scale_channels()});
    }
    cached.coded = heads_first(quantised_rows(method, layer, side, stored, cached.windows.sink, end, steps));
    if (with_noise) noise = steps.square() / 12.0;  // uniform_error() of codec.h
  }
  if (noise.defined()) cached.noise = heads_first(noise);
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
