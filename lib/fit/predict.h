// Predicted errors of a fit on rows that it has not seen: the numbers of the before/after table.
#pragma once

#include "fit/fit_result.h"
#include "fit/fit_rows.h"
#include "fit/head_scorer.h"

namespace oscar {

// heads [Hkv, d, d] per-token moments; vectors [S, d, d] in ascending order, or undefined for a data-free transform
// (its `fit` is then the identity's share).
CapturedEnergy captured_energy(const at::Tensor& heads, const at::Tensor& vectors);

// The cost of errors in the rows of one side, layer by layer. far: metric and residual are of pairs outside the
// windows. Then errors / residual has one unit in all layers, the share of the residual stream's energy that they
// disturb, and may be summed. Otherwise metrics of different layers are not comparable.
struct SideCosts {
  std::vector<at::Tensor> metric;  // [layer] [Hkv, d, d]: side_moments.h; the identity if nothing reads the rows
  std::vector<double> residual;    // [layer] residual_power()
  bool far = false;
  // Cost of one layer per token: comparable between layers if `far`, else relative to the layer's own signal.
  double cost(std::size_t layer, const ErrorSum& sum, std::int64_t tokens) const;
};
SideCosts side_costs(const Statistics& statistics, Side side);

// A HeadProblem of KV head `head` without its transform and its metric. The output metric is W_O^T W_O, or the identity
// if the statistics have none (all zero).
HeadProblem make_problem(const Statistics& statistics, std::size_t layer, std::int64_t head, const RowSet& rows,
                         const RowCode& code, Encoder encoder);

// Sums of one head, or of several heads.
struct PredictionSums {
  ErrorSum identity, hadamard, unclipped, fit, one_clip;
  PredictionSums& operator+=(const PredictionSums& other);
};

// problem: KV head `head` with its metric, on held-out rows. Its code is used for identity and Hadamard, `code` for the
// fit. one_clip: the single ratio of the model, for the fit's error with it.
PredictionSums predict_head(HeadProblem problem, Side side, const SideTransform& transform, std::int64_t head,
                            const RowCode& code, float one_clip);

}  // namespace oscar
