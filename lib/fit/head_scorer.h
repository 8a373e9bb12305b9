// How much a quantized side of one KV head disturbs attention, measured on sampled rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "codec/codec.h"
#include "transform/transform.h"

namespace oscar {

// Error energy and signal energy; both can be summed over heads or rows.
struct ErrorSum {
  double error = 0.0, signal = 0.0;
  ErrorSum& operator+=(const ErrorSum& other);
  double relative() const;  // error / signal; 0 if there is no signal
};

// One KV head: rows, their transform, and the metric of the side.
struct HeadProblem {
  Side side = Side::kKey;
  at::Tensor q;              // [N g, d] FP32
  at::Tensor k, v;           // [N, d] FP32
  at::Tensor output_metric;  // [d, d] FP64: W = W_O^T W_O summed over the group
  at::Tensor metric;         // [d, d] FP64: M, the cost of errors in rows of this side; required by scorers
  at::Tensor forward, back;  // [d, d] FP32; back: SideTransform::back() of the side
  at::Tensor mean;           // undefined, or [d], or [N, d] for one mean per row
  at::Tensor rope_phases;    // [N, d]: for rotated means
  RowCode code;
  Encoder encoder = Encoder::kMinMax;
  std::array<float, kBands> sigma{1.0f, 1.0f, 1.0f, 1.0f};  // RowCodec::sigma
};

// Sets side, forward, back, mean and sigma: head `head`'s part of a layer's transform.
void use_transform(HeadProblem& problem, Side side, const SideTransform& transform, std::int64_t head);

class HeadScorer {
 public:
  virtual ~HeadScorer() = default;
  // clip: rho of the codec. The quantized rows are the transformed rows rounded to BF16, as in the cache.
  virtual ErrorSum score(float clip) const = 0;
};

// The error of the rows in the metric M of their side. With e = xhat - x in the coordinates of the model:
//   keys:   error = sum_t (e_t - mean e) M (e_t - mean e)^T,  signal = sum_t (k_t - mean k) M (k_t - mean k)^T.
//           A shift that is equal for all keys moves all logits of a query equally; softmax is invariant to it, so
//           neither sum counts it.
//   values: error = sum_t e_t M e_t^T,  signal = sum_t v_t M v_t^T.
std::unique_ptr<HeadScorer> metric_scorer(const HeadProblem& problem);

// The value error above plus kGainWeight times the part of it that is a gain. x are the rows before quantization (minus
// the mean that a centered transform removes), X = sum_t x_t M x_t^T, gamma = sum_t e_t M x_t^T / X. error = sum_t e_t
// M e_t^T + kGainWeight gamma^2 X. An attention output averages many values. Their independent errors average out there
// and in later layers, but a common shrinking does not. (Keys use the same formula.)
std::unique_ptr<HeadScorer> gain_scorer(const HeadProblem& problem);
inline constexpr double kGainWeight = 5.0;

}  // namespace oscar
