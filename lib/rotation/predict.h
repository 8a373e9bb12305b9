// What a fit is predicted to do on rows it has not seen: the numbers of the before/after table.
#pragma once

#include "rotation/fit_result.h"
#include "rotation/fit_rows.h"
#include "rotation/head_scorer.h"

namespace oscar {

// heads [Hkv, d, d] per-token moments; vectors [S, d, d] in ascending order, or undefined for a data-free transform
// (its `fit` is then the identity's share).
CapturedEnergy captured_energy(const at::Tensor& heads, const at::Tensor& vectors);

// What errors in the rows of one side cost, layer by layer. far: both are those of far pairs, so errors / residual of
// all layers are in one unit, the share of the residual stream's energy that they disturb, and may be added up.
// Otherwise metrics of different layers have nothing in common.
struct SideCosts {
  std::vector<at::Tensor> metric;  // [layer] [Hkv, d, d]: side_moments.h; the identity where nothing reads the rows
  std::vector<double> residual;    // [layer] residual_power()
  bool far = false;
  // Of one layer, per token: comparable between layers where `far`, else relative to the layer's own signal.
  double cost(std::size_t layer, const ErrorSum& sum, std::int64_t tokens) const;
};
SideCosts side_costs(const Statistics& statistics, Side side, MetricSource source);

// A HeadProblem of KV head `head` without its transform and its metric. The output metric is W_O^T W_O, or the identity
// where the statistics hold none (all zero).
HeadProblem make_problem(const Statistics& statistics, std::size_t layer, std::int64_t head, const RowSet& rows,
                         const RowCode& code, Encoder encoder);

// Sums of one head, or of several added up.
struct PredictionSums {
  ErrorSum identity, hadamard, unclipped, fit, one_clip;
  PredictionSums& operator+=(const PredictionSums& other);
};

// problem: of KV head `head`, with its metric, on held-out rows; its code is that of the identity and Hadamard rows,
// `code` that of the fit. one_clip: what the fit would cost with the one ratio of the whole model.
PredictionSums predict_head(HeadProblem problem, Side side, const SideTransform& transform, std::int64_t head,
                            const RowCode& code, float one_clip);

}  // namespace oscar
