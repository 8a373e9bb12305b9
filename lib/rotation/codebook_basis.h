// The basis in which the rows of a side are coded by codebooks, and what weighs errors there.
#pragma once

#include <ATen/core/Tensor.h>

#include "registry/codebook_spec.h"
#include "rotation/codebook_rows.h"
#include "rotation/fit_options.h"
#include "rotation/transform.h"
#include "statistics/statistics.h"

namespace oscar {

// Tokens of the contexts that keys before RoPE are weighed for: queries stand up to so far behind a key, all distances
// alike (TaSQ calibrates on sequences of this length).
inline constexpr std::int64_t kWeighedContext = 2048;

// Second moment of what a query does to keys before RoPE, or metric of errors in them, [Hkv, d, d] FP64: of the metric
// of the KL as it was collected; else of queries before RoPE, averaged over distances below kWeighedContext.
enum class PreRopeMoment { kQueries, kMetric };
at::Tensor pre_rope_moment(const Statistics& statistics, std::size_t layer, PreRopeMoment kind, MetricSource source);

struct CodebookBasisFit {
  SideTransform transform;  // clip off, no codebook yet
  at::Tensor weights;       // [Hkv, d] FP32, not negative, of the channels of that basis; undefined: all alike
};

// Not for CodebookBasis::kRotation, whose transform comes from the fit of method oscar.
CodebookBasisFit fit_codebook_basis(const Statistics& statistics, const FitOptions& options, std::size_t layer,
                                    Side side, const CodebookSide& spec, const CodebookRows& rows);

// Squared gradients [N, Hkv, d] to the rows as squared gradients to what the transform makes of them, [Hkv, N, d]: the
// diagonal of B^T diag(g^2) B with B the way back, exact where the transform scales and reorders channels.
at::Tensor gradients_to_basis(const SideTransform& transform, Side side, const at::Tensor& gradients);

// Rows [N, Hkv, d] in the basis of a transform, [Hkv, N, d] FP32, and back.
at::Tensor to_basis(const SideTransform& transform, const at::Tensor& rows);
at::Tensor from_basis(const SideTransform& transform, Side side, const at::Tensor& rows);

}  // namespace oscar
