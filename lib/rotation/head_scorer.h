// How much a quantized side of one KV head disturbs the attention, measured on sampled rows.
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
  at::Tensor q;              // [N g, d] FP32
  at::Tensor k, v;           // [N, d] FP32
  at::Tensor output_metric;  // [d, d] FP64: W = W_O^T W_O summed over the group
  at::Tensor metric;         // [d, d] FP64: M, what errors in rows of this side cost; scorers need it
  at::Tensor forward, back;  // [d, d] FP32; back: SideTransform::back() of the side
  at::Tensor mean;           // undefined, or [d], or [N, d]: of each row
  at::Tensor rope_phases;    // [N, d]: for rotated means
  RowCode code;
  Encoder encoder = Encoder::kMinMax;
  std::shared_ptr<const FeedbackMetric> feedback;  // encoder feedback; null: search takes its place
};

// Sets side, forward, back and mean: the part of a layer's transform that head `head` uses.
void use_transform(HeadProblem& problem, Side side, const SideTransform& transform, std::int64_t head);

class HeadScorer {
 public:
  virtual ~HeadScorer() = default;
  // clip: rho of the codec. The rows that are quantized are the BF16-rounded transformed rows, as in the cache.
  virtual ErrorSum score(float clip) const = 0;
};

// The error of the rows in the metric M of their side. With e = xhat - x in the coordinates of the model:
//   keys:   error = sum_t (e_t - mean e) M (e_t - mean e)^T,  signal = sum_t (k_t - mean k) M (k_t - mean k)^T.
//           A shift that is the same for every key moves all logits of a query alike, softmax does not see it, and it
//           counts in neither sum.
//   values: error = sum_t e_t M e_t^T,  signal = sum_t v_t M v_t^T.
std::unique_ptr<HeadScorer> metric_scorer(const HeadProblem& problem);

// The value error above plus kGainWeight times the part of it that is a gain: with x the rows as they are quantized
// (less the mean that a centered transform removes), X = sum_t x_t M x_t^T and gamma = sum_t e_t M x_t^T / X,
// error = sum_t e_t M e_t^T + kGainWeight gamma^2 X. An attention output averages many values: their independent
// errors cancel there and in later layers, a common shrinking does not. (For keys the same formula.)
std::unique_ptr<HeadScorer> gain_scorer(const HeadProblem& problem);
inline constexpr double kGainWeight = 5.0;  // docs/transforms.md has the measurements

}  // namespace oscar
