#include "rotation/predict.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "rotation/feedback_metric.h"
#include "rotation/transforms.h"

namespace oscar {

CapturedEnergy captured_energy(const at::Tensor& heads, const at::Tensor& vectors) {
  const std::int64_t d = heads.size(-1);
  const std::int64_t top = std::max<std::int64_t>(1, d / 16);
  const at::Tensor diagonal = heads.diagonal(0, -2, -1);  // [Hkv, d]
  const double total = diagonal.sum().item<double>();
  CapturedEnergy energy;
  if (!(total > 0.0)) return energy;
  const bool shared = !vectors.defined() || vectors.size(0) == 1;
  const at::Tensor ranked = shared ? diagonal.sum(0, true) : diagonal;  // one choice of channels, or one for each head
  energy.identity = std::get<0>(ranked.topk(top, -1)).sum().item<double>() / total;
  energy.fit = energy.identity;
  if (vectors.defined()) {
    const at::Tensor leading = vectors.narrow(-1, d - top, top);  // [S, d, top]
    energy.fit = (at::matmul(heads, leading) * leading).sum().item<double>() / total;
  }
  return energy;
}

HeadProblem make_problem(const Statistics& statistics, std::size_t layer, std::int64_t head, const RowSet& rows,
                         const RowCode& code, Encoder encoder) {
  HeadProblem problem;
  problem.q = rows.q[head];
  problem.k = rows.k[head];
  problem.v = rows.v[head];
  problem.phases = rows.phases;
  const double queries = static_cast<double>(std::max<std::int64_t>(statistics.tokens, 1) *
                                             (statistics.query_heads / statistics.kv_heads));
  problem.query_moment = statistics.layers[layer].q_gram[head] / queries;
  problem.output_metric = statistics.layers[layer].wo_gram[head];
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
  global_clip += other.global_clip;
  return *this;
}

SidePrediction PredictionSums::relative() const {
  return {identity.relative(), hadamard.relative(), unclipped.relative(), fit.relative(), global_clip.relative()};
}

PredictionSums predict_head(HeadProblem problem, Side side, const SideTransform& transform, std::int64_t head,
                            const RowCode& code, float global_clip) {
  const std::int64_t d = problem.k.size(-1);
  PredictionSums sums;
  use_transform(problem, side, identity_side(d), head);
  sums.identity = metric_scorer(problem)->score(0.0f);
  use_transform(problem, side, hadamard_side(d), head);
  sums.hadamard = metric_scorer(problem)->score(0.0f);
  problem.code = code;
  problem.feedback = feedback_metric(transform, code, head);
  use_transform(problem, side, transform, head);
  const std::unique_ptr<HeadScorer> scorer = metric_scorer(problem);
  sums.unclipped = scorer->score(0.0f);
  sums.fit = scorer->score(transform.clip[transform.clip.size() == 1 ? 0 : static_cast<std::size_t>(head)]);
  sums.global_clip = scorer->score(global_clip);
  return sums;
}

}  // namespace oscar
