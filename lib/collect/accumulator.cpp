#include "collect/accumulator.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "collect/device_sums.h"

namespace oscar {
namespace {

// [n, Hkv * g, d] of any float type -> [Hkv, n * g, d] FP32, contiguous, in one pass.
at::Tensor by_kv_head(const at::Tensor& x, std::int64_t kv_heads) {
  const std::int64_t n = x.size(0), g = x.size(1) / kv_heads, d = x.size(2);
  if (const at::Tensor rows = device_rows(x, kv_heads); rows.defined()) return rows;
  at::Tensor out = at::empty({kv_heads, n, g, d}, x.options().dtype(at::kFloat));
  out.copy_(x.reshape({n, kv_heads, g, d}).permute({1, 0, 2, 3}));
  return out.view({kv_heads, n * g, d});
}

std::int64_t chunk_rows(const at::Tensor& x) { return x.is_cuda() ? kGpuChunkRows : kChunkRows; }

// Calls fn(first, count) over [0, total) in chunks of `size`.
template <typename Fn>
void for_chunks(std::int64_t total, std::int64_t size, Fn fn) {
  for (std::int64_t first = 0; first < total; first += size) fn(first, std::min(size, total - first));
}

// x [Hkv, n, d] FP32 -> x^T x [Hkv, d, d] FP64: FP32 products of blocks of rows, summed in FP64. One batched product
// covers all blocks and heads.
at::Tensor gram_of(const at::Tensor& x) {
  const std::int64_t size = x.is_cuda() ? kGpuBlockRows : kBlockRows;
  const std::int64_t heads = x.size(0), n = x.size(1), d = x.size(2), blocks = n / size;
  at::Tensor gram = at::zeros({heads, d, d}, x.options().dtype(at::kDouble));
  if (blocks > 0) {
    const at::Tensor part = x.narrow(1, 0, blocks * size).reshape({heads * blocks, size, d});
    gram.add_(at::bmm(part.transpose(1, 2), part).view({heads, blocks, d, d}).sum(1, false, at::kDouble));
  }
  if (n > blocks * size) {
    const at::Tensor rest = x.narrow(1, blocks * size, n - blocks * size);
    gram.add_(at::bmm(rest.transpose(1, 2), rest));
  }
  return gram;
}

// gram += x^T x and sum += 1 x: each chunk is multiplied about its own mean.
void add_moments_about_mean(at::Tensor& gram, at::Tensor& sum, const at::Tensor& x) {
  if (device_gram_about_mean(gram, sum, x)) return;
  const std::int64_t kv_heads = gram.size(0);
  for_chunks(x.size(0), chunk_rows(x), [&](std::int64_t first, std::int64_t count) {
    at::Tensor chunk = by_kv_head(x.narrow(0, first, count), kv_heads);
    add_rows_about_mean(gram, sum, chunk);
  });
}

// gram += x^T x.
void add_moments(at::Tensor& gram, const at::Tensor& x) {
  if (device_gram(gram, x)) return;
  const std::int64_t kv_heads = gram.size(0);
  const std::int64_t size = std::max<std::int64_t>(1, chunk_rows(x) * kv_heads / x.size(1));
  for_chunks(x.size(0), size, [&](std::int64_t first, std::int64_t count) {
    add_rows(gram, by_kv_head(x.narrow(0, first, count), kv_heads));
  });
}

}  // namespace

void add_rows(at::Tensor& sum, const at::Tensor& rows) {
  if (!device_ordered_gram(sum, rows, kGpuBlockRows)) sum.add_(gram_of(rows));
}

void add_rows_about_mean(at::Tensor& sum, at::Tensor& row_sum, at::Tensor& rows) {
  const at::Tensor mean = rows.mean(1, true);  // [Hkv, 1, d] FP32
  rows.sub_(mean);
  const at::Tensor m = mean.to(at::kDouble), rest = rows.sum(1, true, at::kDouble);
  const at::Tensor whole = rest + static_cast<double>(rows.size(1)) * m;
  add_rows(sum, rows);
  sum.add_(at::bmm(m.transpose(1, 2), whole));
  sum.add_(at::bmm(rest.transpose(1, 2), m));
  row_sum.add_(whole.squeeze(1));
}

void add_gram(at::Tensor& sum, const at::Tensor& x) { add_moments(sum, x); }

void add_gram_about_mean(at::Tensor& sum, at::Tensor& row_sum, const at::Tensor& x) {
  add_moments_about_mean(sum, row_sum, x);
}

at::Tensor exactly_symmetric(const at::Tensor& gram) { return (gram + gram.transpose(-1, -2)) * 0.5; }

MomentAccumulator::MomentAccumulator(std::int64_t kv_heads, std::int64_t head_dim, at::Device device) {
  const auto options = at::TensorOptions(at::kDouble).device(device);
  grams_ = at::zeros({4, kv_heads, head_dim, head_dim}, options);
  sums_ = at::zeros({2, kv_heads, head_dim}, options);
  q_gram_ = grams_[0], k_gram_ = grams_[1], v_gram_ = grams_[2], o_gram_ = grams_[3];
  k_sum_ = sums_[0], v_sum_ = sums_[1];
}

void MomentAccumulator::add(const at::Tensor& q, const at::Tensor& keys_values, const at::Tensor& o) {
  const std::int64_t kv_heads = q_gram_.size(0), d = q_gram_.size(1);
  if (!keys_values.is_cuda()) {
    return add(q, keys_values.narrow(1, 0, kv_heads), keys_values.narrow(1, kv_heads, kv_heads), o);
  }
  at::Tensor gram = grams_.narrow(0, 1, 2).view({2 * kv_heads, d, d}), sum = sums_.view({2 * kv_heads, d});
  add_moments(q_gram_, q);
  add_moments_about_mean(gram, sum, keys_values);
  add_moments(o_gram_, o);
}

void MomentAccumulator::add(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& o) {
  add_moments(q_gram_, q);
  add_moments_about_mean(k_gram_, k_sum_, k);
  add_moments_about_mean(v_gram_, v_sum_, v);
  add_moments(o_gram_, o);
}

at::Tensor MomentAccumulator::trace() const { return grams_.diagonal(0, 2, 3).sum(); }

void MomentAccumulator::finish(LayerMoments& out) const {
  const at::Tensor grams = exactly_symmetric(grams_);
  out.q_gram = grams[0], out.k_gram = grams[1], out.v_gram = grams[2], out.o_gram = grams[3];
  out.k_sum = k_sum_, out.v_sum = v_sum_;
}

EnergyAccumulator::EnergyAccumulator(const at::Tensor& q_gram, at::Device device) {
  const at::Tensor gram = q_gram.to(device), trace = gram.diagonal(0, 1, 2).sum(-1).view({-1, 1, 1});
  metric_ = (gram / at::where(trace > 0, trace, at::ones_like(trace))).to(at::kFloat);
  gram_ = at::zeros(q_gram.sizes(), at::TensorOptions(at::kDouble).device(device));
  weight_ = at::zeros({q_gram.size(0)}, gram_.options());
}

void EnergyAccumulator::add(const at::Tensor& k, const at::Tensor& v) {
  const std::int64_t kv_heads = gram_.size(0);
  tokens_ += k.size(0);
  for_chunks(k.size(0), chunk_rows(k), [&](std::int64_t first, std::int64_t count) {
    const at::Tensor keys = by_kv_head(k.narrow(0, first, count), kv_heads), some = v.narrow(0, first, count);
    // C_Q is positive semi-definite, so a negative weight is a rounding error.
    const at::Tensor weight = at::bmm(keys, metric_).mul_(keys).sum(-1).clamp_min_(0);  // [Hkv, n]
    weight_.add_(weight.sum(-1, false, at::kDouble));
    at::Tensor values = device_weighted_rows(some, weight);
    if (!values.defined()) values = by_kv_head(some, kv_heads).mul_(weight.sqrt().unsqueeze(-1));
    add_rows(gram_, values);
  });
}

at::Tensor EnergyAccumulator::energy_gram() const {
  const at::Tensor norm = at::where(weight_ > 0, static_cast<double>(tokens_) / weight_, at::zeros_like(weight_));
  return exactly_symmetric(gram_ * norm.view({-1, 1, 1}));
}

at::Tensor output_projection_gram(const at::Tensor& o_weight, std::int64_t kv_heads, std::int64_t head_dim) {
  // FP64 throughout, since this runs once per layer; in chunks, since a large model's W_O in FP64 would take gigabytes.
  const at::Tensor heads = o_weight.reshape({o_weight.size(0), kv_heads, -1, head_dim});
  at::Tensor gram = at::zeros({kv_heads, head_dim, head_dim}, o_weight.options().dtype(at::kDouble));
  for_chunks(heads.size(0), kChunkRows, [&](std::int64_t first, std::int64_t count) {
    const at::Tensor chunk =
        heads.narrow(0, first, count).permute({1, 0, 2, 3}).to(at::kDouble).reshape({kv_heads, -1, head_dim});
    const std::int64_t rows = chunk.size(1), blocks = rows / kGpuBlockRows;
    if (chunk.is_cuda() && rows % kGpuBlockRows == 0) {  // one product per head would leave most of a GPU idle
      const at::Tensor part = chunk.reshape({kv_heads * blocks, kGpuBlockRows, head_dim});
      gram.add_(at::bmm(part.transpose(1, 2), part).view({kv_heads, blocks, head_dim, head_dim}).sum(1));
    } else {
      gram.add_(at::bmm(chunk.transpose(1, 2), chunk));
    }
  });
  return exactly_symmetric(gram);
}

}  // namespace oscar
