#include "rotation/predict.h"

#include <ATen/ATen.h>

#include <algorithm>

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

SidePrediction predict_side(const Statistics& statistics, std::size_t layer, Side side, const SideTransform& transform,
                            float global_clip, const RowSet& held_out, const RowCode& code, Encoder encoder) {
  const SideTransform identity = identity_side(statistics.head_dim), hadamard = hadamard_side(statistics.head_dim);
  ErrorSum plain, mixed, unclipped, fitted, global;
  for (std::int64_t head = 0; head < statistics.kv_heads; ++head) {
    HeadProblem problem = make_problem(statistics, layer, head, held_out, code, encoder);
    use_transform(problem, side, identity, head);
    plain += metric_scorer(problem)->score(0.0f);
    use_transform(problem, side, hadamard, head);
    mixed += metric_scorer(problem)->score(0.0f);
    use_transform(problem, side, transform, head);
    const std::unique_ptr<HeadScorer> scorer = metric_scorer(problem);
    unclipped += scorer->score(0.0f);
    fitted += scorer->score(transform.clip[transform.clip.size() == 1 ? 0 : static_cast<std::size_t>(head)]);
    global += scorer->score(global_clip);
  }
  return {plain.relative(), mixed.relative(), unclipped.relative(), fitted.relative(), global.relative()};
}

}  // namespace oscar
