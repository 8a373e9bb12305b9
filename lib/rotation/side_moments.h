// What a metric-aware transform is fitted to: how the rows of a side vary, and what an error in them costs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "rotation/position_average.h"
#include "rotation/targets.h"
#include "statistics/statistics.h"

namespace oscar {

// Which metric weighs errors: the far-pair metrics of the statistics (what an error moves in the layer's output
// once the token is quantized), or the plain ones (keys Q^T Q, values W_O^T W_O or the chosen value target).
enum class MetricSource { kAuto, kFarPairs, kMoments };  // kAuto: far pairs where the statistics have it

const char* metric_name(MetricSource source);  // "auto", "fisher", "moments"

// What a choice comes to, never kAuto. InputError for a metric that is asked for and absent.
MetricSource used_metric(const Statistics& statistics, MetricSource source);

// One side of one layer, [Hkv, d, d] FP64.
struct SideMoments {
  at::Tensor mean;        // [Hkv, d]: of the rows; rotated: of the keys before RoPE
  at::Tensor covariance;  // about the mean, or about zero when not centered
  // E |error in the layer's output|^2 = tr(error covariance x metric), in the size of the residual_power().
  at::Tensor metric;
  MetricSource source = MetricSource::kMoments;  // of the metric
};

struct MomentChoice {
  ValueTarget value_target = ValueTarget::kExact;
  MetricSource source = MetricSource::kAuto;
  bool centered = false;  // the covariance is about the mean
  bool rotated = false;   // keys: about the mean of keys before RoPE, at each key's position; needs `served`
  // Keys: rows and metric as RoPE would turn them at these positions; count 0: as they were collected.
  Positions served;
};

// InputError when a metric is asked for and absent. For keys the metric is per
// token of the layer: far-pair Q = mean over far queries of sum_j w_ij q^T q / d; plain Q^T Q / T. Values: far-pair
// mean of sum_heads (sum_j p_ij^2) W_O^T W_O; plain W_O^T W_O or the value target.
SideMoments side_moments(const Statistics& statistics, std::size_t layer, Side side, const MomentChoice& choice);

// What an error in a key does to the logits of queries, whatever weight these have: the second moment of scale q over
// all queries of the group, [Hkv, d, d]; at the served positions, or as collected.
at::Tensor logit_moment(const Statistics& statistics, std::size_t layer, const Positions& served);

// True when every layer holds far-pair metrics of at least one far query.
bool has_far_pairs(const Statistics& statistics);

// Mean squared norm of the residual stream where the attention output is added (over far tokens where the statistics
// know them): what the next norm divides by. 1 where nothing is known.
double residual_power(const Statistics& statistics, std::size_t layer);

// A covariance that rounding left indefinite, made definite: with channels scaled to unit deviation, eigenvalues below
// the size of the most negative one are raised to it, which is what can be told from noise. Large means that were taken
// away do that (keys centered before RoPE). `noise`: that size. Undefined where the damped matrix is definite as it is.
at::Tensor without_noise(const at::Tensor& matrix, double damping, std::int64_t tokens, double& noise);

// A second moment made positive definite: damping x its own diagonal is added (which commutes with scaling of single
// channels, so outlier channels change nothing), the off-diagonal part is shrunk by d / (tokens + d) for the noise of a
// short sample, and channels that never vary (below 1e-10 of the median diagonal) get 1e-6 of it. `matrix` [d, d] FP64,
// not all zero.
at::Tensor damped(const at::Tensor& matrix, double damping, std::int64_t tokens);

}  // namespace oscar
