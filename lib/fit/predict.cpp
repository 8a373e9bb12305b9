#include "fit/predict.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "fit/for_each_head.h"
#include "transform/fixed_sides.h"

namespace oscar {

CapturedEnergy captured_energy(const at::Tensor& heads, const at::Tensor& vectors) {
  const std::int64_t d = heads.size(-1);
  const std::int64_t top = std::max<std::int64_t>(1, d / 16);
  const at::Tensor diagonal = heads.diagonal(0, -2, -1);  // [Hkv, d]
  const double total = diagonal.sum().item<double>();
  CapturedEnergy energy;
  if (!(total > 0.0)) return energy;
  const bool shared = !vectors.defined() || vectors.size(0) == 1;
  const at::Tensor ranked = shared ? diagonal.sum(0, true) : diagonal;  // one choice of channels, or one per head
  energy.identity = std::get<0>(ranked.topk(top, -1)).sum().item<double>() / total;
  energy.fit = energy.identity;
  if (vectors.defined()) {
    const at::Tensor leading = vectors.narrow(-1, d - top, top);  // [S, d, top]
    energy.fit = (at::matmul(heads, leading) * leading).sum().item<double>() / total;
  }
  return energy;
}

double SideCosts::cost(std::size_t layer, const ErrorSum& sum, std::int64_t tokens) const {
  if (!far) return sum.relative();
  return sum.error / static_cast<double>(std::max<std::int64_t>(tokens, 1)) / residual[layer];
}

SideCosts side_costs(const Statistics& statistics, Side side) {
  SideCosts costs;
  costs.far = has_far_pairs(statistics);
  costs.metric.resize(statistics.layers.size());
  costs.residual.resize(statistics.layers.size());
  for_each_layer(statistics.layers.size(), [&](std::size_t layer) {
    at::Tensor metric = side_metric(statistics, layer, side, {ValueTarget::kOutput, false, false, {}}).clone();
    for (std::int64_t head = 0; head < statistics.kv_heads; ++head) {
      if (!(metric[head].diagonal().sum().item<double>() > 0.0)) {
        metric[head].copy_(at::eye(statistics.head_dim, at::kDouble));
      }
    }
    costs.metric[layer] = std::move(metric);
    costs.residual[layer] = residual_power(statistics, layer);
  });
  return costs;
}

HeadProblem make_problem(const Statistics& statistics, std::size_t layer, std::int64_t head, const RowSet& rows,
                         const RowCode& code, Encoder encoder) {
  HeadProblem problem{.q = rows.q[head],
                      .k = rows.k[head],
                      .v = rows.v[head],
                      .output_metric = statistics.layers[layer].wo_gram[head],
                      .rope_phases = rows.rope_phases};
  if (!(problem.output_metric.diagonal().sum().item<double>() > 0.0)) {
    problem.output_metric = at::eye(statistics.head_dim, at::kDouble);
  }
  problem.code = code;
  problem.encoder = encoder;
  return problem;
}

PredictionSums& PredictionSums::operator+=(const PredictionSums& other) {
  identity += other.identity;
  hadamard += other.hadamard;
  unclipped += other.unclipped;
  fit += other.fit;
  one_clip += other.one_clip;
  return *this;
}

PredictionSums predict_head(HeadProblem problem, Side side, const SideTransform& transform, std::int64_t head,
                            const RowCode& code, float one_clip) {
  const std::int64_t d = problem.k.size(-1);
  PredictionSums sums;
  use_transform(problem, side, identity_side(d), head);
  sums.identity = metric_scorer(problem)->score(0.0f);
  use_transform(problem, side, hadamard_side(d), head);
  sums.hadamard = metric_scorer(problem)->score(0.0f);
  problem.code = code;
  use_transform(problem, side, transform, head);
  const std::unique_ptr<HeadScorer> scorer = metric_scorer(problem);
  sums.unclipped = scorer->score(0.0f);
  sums.fit = scorer->score(transform.clip[transform.clip.size() == 1 ? 0 : static_cast<std::size_t>(head)]);
  sums.one_clip = scorer->score(one_clip);
  return sums;
}

}  // namespace oscar
