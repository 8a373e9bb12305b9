#include "rotation/codebook_basis.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "base/errors.h"
#include "rotation/channel_groups.h"
#include "rotation/eigen.h"
#include "rotation/position_average.h"
#include "rotation/side_moments.h"

namespace oscar {
namespace {

constexpr double kWeightFloor = 1e-6;  // of the largest channel

SideTransform plain_transform(std::int64_t d) {
  SideTransform t;
  t.forward = at::eye(d, at::kFloat).unsqueeze(0);
  t.eigenvalues = at::ones({1, d}, at::kFloat);
  t.clip = {0.0f};
  return t;
}

at::Tensor diagonals(const at::Tensor& matrices) { return matrices.diagonal(0, -2, -1).clamp_min(0.0).contiguous(); }

// Diagonal of the metric of errors in the rows as they are, [Hkv, d] FP64.
at::Tensor error_weights(const Statistics& s, const FitOptions& o, std::size_t layer, Side side,
                         const CodebookSide& spec) {
  if (side == Side::kKey && spec.before_rope) {
    return diagonals(pre_rope_moment(s, layer, PreRopeMoment::kMetric, used_metric(s, o.metric)));
  }
  return diagonals(side_moments(s, layer, side, {ValueTarget::kOutput, o.metric, false, false, {}}).metric);
}

// [Hkv, d, d] covariance of rows times w over their scale.
at::Tensor normed_covariance(const CodebookRows& rows, const at::Tensor& w, RowScale scale) {
  const std::int64_t heads = w.size(0), d = w.size(1), count = rows.count();
  at::Tensor sum = at::zeros({heads, 1, d}, at::kDouble), products = at::zeros({heads, d, d}, at::kDouble);
  for (std::int64_t first = 0; first < count; first += kPointsAtOnce) {
    const at::Tensor block = rows.read(first, std::min(kPointsAtOnce, count - first)).to(at::kDouble);
    const at::Tensor scaled = (block * w.unsqueeze(0)).transpose(0, 1);  // [Hkv, n, d]
    const at::Tensor normed = scaled / row_scales(scaled.to(at::kFloat), scale);
    sum += normed.sum(1, true);
    products += at::matmul(normed.transpose(1, 2), normed);
  }
  const double n = static_cast<double>(count);
  return (products - at::matmul(sum.transpose(1, 2), sum) / n) / std::max(n - 1.0, 1.0);
}

// TaSQ: y = x w, w the root of what queries make of a channel, relative to the mean; then RoPE pairs of like channels
// into one group. An error e of y is one of e / w in x, so that weights are divided by w^2.
CodebookBasisFit smoothed(const Statistics& s, std::size_t layer, const CodebookSide& spec, const CodebookRows& rows,
                          const at::Tensor& weights) {
  const std::int64_t heads = s.kv_heads, d = s.head_dim;
  at::Tensor energy = diagonals(pre_rope_moment(s, layer, PreRopeMoment::kQueries, MetricSource::kMoments));
  energy = at::maximum(energy, kWeightFloor * energy.amax(1, true));
  const at::Tensor w = (energy / energy.mean(1, true)).sqrt().nan_to_num(1.0);  // a head without queries: all alike
  const at::Tensor covariance = normed_covariance(rows, w, spec.scale);
  CodebookBasisFit fit{plain_transform(d), at::empty({heads, d}, at::kFloat)};
  fit.transform.forward = at::zeros({heads, d, d}, at::kFloat);
  fit.transform.query_side = at::zeros({heads, d, d}, at::kFloat);
  fit.transform.eigenvalues = at::ones({heads, d}, at::kFloat);
  for (std::int64_t h = 0; h < heads; ++h) {
    const std::vector<std::int64_t> order = matched_channels(covariance[h], spec.channels);
    for (std::int64_t j = 0; j < d; ++j) {
      const std::int64_t channel = order[static_cast<std::size_t>(j)];
      const double factor = w[h][channel].item<double>();
      fit.transform.forward[h][channel][j] = factor;
      fit.transform.query_side[h][channel][j] = 1.0 / factor;
      fit.weights[h][j] = weights[h][channel].item<double>() / (factor * factor);
    }
  }
  return fit;
}

// NOVA-KV: with S the queries' second moment and C the keys' covariance, V the eigenvectors of S^1/2 C S^1/2, rows
// are multiplied by S^1/2 V and dealt out to groups of about equal volume. S is damped, so that its root has an
// inverse.
CodebookBasisFit joint(const Statistics& s, const FitOptions& o, std::size_t layer, const CodebookSide& spec) {
  const std::int64_t heads = s.kv_heads, d = s.head_dim;
  const SideMoments moments =
      side_moments(s, layer, Side::kKey, {ValueTarget::kExact, MetricSource::kMoments, true, false, {}});
  CodebookBasisFit fit{plain_transform(d), {}};
  fit.transform.forward = at::empty({heads, d, d}, at::kFloat);
  fit.transform.query_side = at::empty({heads, d, d}, at::kFloat);
  fit.transform.eigenvalues = at::empty({heads, d}, at::kFloat);
  for (std::int64_t h = 0; h < heads; ++h) {
    const std::string name = "layers." + std::to_string(layer) + ".q_gram head " + std::to_string(h);
    const at::Tensor metric = moments.metric[h];
    const bool nothing = metric.diagonal().sum().item<double>() <= 0.0;
    const at::Tensor queries = nothing ? at::eye(d, at::kDouble) : damped(metric, o.damping, s.tokens);
    const SymmetricEigen root = symmetric_eigen(queries.unsqueeze(0), {name}, at::kCPU);
    const at::Tensor size = root.values[0].clamp_min(1e-300).sqrt(), vectors = root.vectors[0];
    const at::Tensor half = at::matmul(vectors * size, vectors.t()), back = at::matmul(vectors / size, vectors.t());
    const at::Tensor both = at::matmul(half, at::matmul(moments.covariance[h], half));
    const SymmetricEigen axes = symmetric_eigen(((both + both.t()) * 0.5).unsqueeze(0), {name}, at::kCPU);
    const std::vector<std::int64_t> order = dealt_channels(axes.values[0], spec.channels);
    const at::Tensor columns =
        axes.vectors[0].index_select(1, at::tensor(at::ArrayRef<std::int64_t>(order), at::kLong));
    fit.transform.forward[h].copy_(at::matmul(half, columns));
    fit.transform.query_side[h].copy_(at::matmul(back, columns));
    fit.transform.eigenvalues[h].copy_(axes.values[0]);
  }
  return fit;
}

}  // namespace

at::Tensor pre_rope_moment(const Statistics& s, std::size_t layer, PreRopeMoment kind, MetricSource source) {
  const LayerMoments& m = s.layers[layer];
  if (kind == PreRopeMoment::kMetric && source == MetricSource::kKl) {
    return m.kl_pre_k_gram / m.kl_count[0].item<double>();
  }
  require_rope(s);
  const bool far = kind == PreRopeMoment::kMetric && source == MetricSource::kFarPairs;
  const at::Tensor& gram = far ? m.far_pre_q_gram : m.pre_q_gram;
  if (!gram.defined()) {
    throw InputError("the statistics are of format 1, without moments before RoPE; collect them again");
  }
  const PositionAverage average(s.rope_frequency, 1.0, s.head_dim, {0, kWeighedContext});
  return average.second_moment(gram / static_cast<double>(std::max<std::int64_t>(s.tokens, 1)));
}

CodebookBasisFit fit_codebook_basis(const Statistics& s, const FitOptions& o, std::size_t layer, Side side,
                                    const CodebookSide& spec, const CodebookRows& rows) {
  at::Tensor weights;
  if (spec.weighted) weights = error_weights(s, o, layer, side, spec);
  if (spec.basis == CodebookBasis::kSmoothed) return smoothed(s, layer, spec, rows, weights);
  if (spec.basis == CodebookBasis::kJoint) return joint(s, o, layer, spec);
  return {plain_transform(s.head_dim), weights.defined() ? weights.to(at::kFloat) : weights};
}

at::Tensor to_basis(const SideTransform& t, const at::Tensor& rows) {
  at::Tensor x = rows.to(at::kFloat).transpose(0, 1);
  if (t.mean.defined()) x = x - t.mean.to(rows.device()).unsqueeze(1);
  return at::matmul(x, t.forward.to(rows.device(), at::kFloat)).contiguous();
}

at::Tensor gradients_to_basis(const SideTransform& t, Side side, const at::Tensor& gradients) {
  at::Tensor back = t.orthogonal() ? t.forward : t.back(side);
  if (side == Side::kValue && !t.orthogonal()) back = back.transpose(1, 2);  // [c, j]: what y_j adds to x_c
  return at::matmul(gradients.to(at::kFloat).transpose(0, 1), back.to(at::kFloat).square()).contiguous();
}

at::Tensor from_basis(const SideTransform& t, Side side, const at::Tensor& rows) {
  at::Tensor back = (t.orthogonal() ? t.forward : t.back(side)).to(rows.device(), at::kFloat);
  if (side == Side::kKey || t.orthogonal()) back = back.transpose(1, 2);
  at::Tensor x = at::matmul(rows, back);
  if (t.mean.defined()) x = x + t.mean.to(rows.device()).unsqueeze(1);
  return x.transpose(0, 1).contiguous();
}

}  // namespace oscar
