// How much a quantised side of one KV head disturbs the attention, measured on sampled rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "codec/codec.h"
#include "rotation/transform.h"

namespace oscar {

// Error energy and signal energy; sums over heads or rows add up.
struct ErrorSum {
  double error = 0.0, signal = 0.0;
  ErrorSum& operator+=(const ErrorSum& other);
  double relative() const;  // error / signal; 0 when there is no signal
};

// One KV head: rows, the transform that applies to it, and the metric of its side.
struct HeadProblem {
  Side side = Side::kKey;
  at::Tensor q;                          // [N g, d] FP32
  at::Tensor k, v;                       // [N, d] FP32
  at::Tensor query_moment;               // [d, d] FP64: C_Q = Q^T Q per query row of the group
  at::Tensor output_metric;              // [d, d] FP64: W = W_O^T W_O summed over the group
  at::Tensor forward, inverse_or_query;  // [d, d] FP32; inverse_or_query undefined when orthogonal
  at::Tensor mean;                       // undefined, or [d], or [N, d]: of each row
  at::Tensor phases;                     // [N, d]: for rotated means
  RowCode code;
  Encoder encoder = Encoder::kMinMax;
  std::shared_ptr<const FeedbackMetric> feedback;  // encoder feedback; null: search takes its place
};

// Sets side, forward, inverse_or_query and mean: the part of a layer's transform that head `head` uses.
void use_transform(HeadProblem& problem, Side side, const SideTransform& transform, std::int64_t head);

class HeadScorer {
 public:
  virtual ~HeadScorer() = default;
  // clip: rho of the codec. The rows that are quantised are the BF16-rounded transformed rows, as in the runtime.
  virtual ErrorSum score(float clip) const = 0;
};

// The metric-weighted error of the rows themselves. With e = xhat - x in the coordinates of the model:
//   keys:   error = sum_t (e_t - mean e) C_Q (e_t - mean e)^T,  signal = sum_t (k_t - mean k) C_Q (k_t - mean k)^T:
//           the mean squared error of the logits q k^T and their variance, over all pairs of a query and a key. A
//           shift that is the same for every key moves all logits of a query alike, softmax does not see it, and it
//           counts in neither sum.
//   values: error = sum_t e_t W e_t^T,  signal = sum_t v_t W v_t^T.
std::unique_ptr<HeadScorer> metric_scorer(const HeadProblem& problem);

// The value error above plus kGainWeight times the part of it that is a gain: with x the rows as they are quantised
// (less the mean that a centred transform removes), X = sum_t x_t W x_t^T and gamma = sum_t e_t W x_t^T / X,
// error = sum_t e_t W e_t^T + kGainWeight gamma^2 X. An attention output averages many values: their independent
// errors cancel there and in later layers, a common shrinking does not. (For keys the same formula with C_Q.)
std::unique_ptr<HeadScorer> gain_scorer(const HeadProblem& problem);
inline constexpr double kGainWeight = 5.0;  // lib/rotation/README.md has the measurements

// The error of the head's attention output after W_O in the runtime's situation: some keys are BF16, the others
// quantised. The sampled tokens are one context that every sampled query sees whole (no mask); half of them are exact,
// the other half quantised, and then the other way round. P = softmax(q k^T / sqrt(d)), o = P v.
//   keys:   error = sum_q |(Phat - P) v|_W^2;   values: error = sum_q |P (vhat - v)|_W^2;   signal = sum_q |o|_W^2.
// Unlike the metric error it sees what a shrinking or a shift of all quantised keys does: it moves attention between
// the exact and the quantised tokens.
std::unique_ptr<HeadScorer> attention_scorer(const HeadProblem& problem);

}  // namespace oscar
