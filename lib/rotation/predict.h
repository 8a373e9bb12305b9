// What a fit is predicted to do on rows it has not seen: the numbers of the before/after table.
#pragma once

#include "rotation/fit.h"
#include "rotation/fit_rows.h"

namespace oscar {

// heads [Hkv, d, d] per-token moments; vectors [S, d, d] in ascending order, or undefined for a data-free transform
// (its `fit` is then the identity's share).
CapturedEnergy captured_energy(const at::Tensor& heads, const at::Tensor& vectors);

// A HeadProblem of KV head `head` without its transform. The output metric is W_O^T W_O, or the identity where the
// statistics hold none (all zero).
HeadProblem make_problem(const Statistics& statistics, std::size_t layer, std::int64_t head, const RowSet& rows,
                         const RowCode& code, Encoder encoder);

// Sums of one head, or of several added up.
struct PredictionSums {
  ErrorSum identity, hadamard, unclipped, fit, global_clip;
  PredictionSums& operator+=(const PredictionSums& other);
  SidePrediction relative() const;
};

// problem: of KV head `head`, on held-out rows; its code is that of the identity and Hadamard rows, `code` that of
// the fit.
PredictionSums predict_head(HeadProblem problem, Side side, const SideTransform& transform, std::int64_t head,
                            const RowCode& code, float global_clip);

}  // namespace oscar
