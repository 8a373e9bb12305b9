// The basis in which the rows of a side are coded by codebooks, and what weighs errors there.
#pragma once

#include <ATen/core/Tensor.h>

#include "registry/codebook_spec.h"
#include "rotation/fit_options.h"
#include "rotation/transform.h"
#include "statistics/statistics.h"

namespace oscar {

// Tokens of the contexts that keys before RoPE are weighed for: queries stand up to so far behind a key, all distances
// alike (TaSQ calibrates on sequences of this length).
inline constexpr std::int64_t kWeighedContext = 2048;

// The sampled rows that codebooks are learned from: keys or values of tokens from position `sink` on, at most `most`
// (0: all), in the order of the sample; keys before RoPE where `before_rope`. [N, Hkv, d] FP32. InputError where
// rotations cannot be taken back.
at::Tensor codebook_rows(const Statistics& statistics, std::size_t layer, Side side, bool before_rope,
                         std::int64_t sink, std::int64_t most);

// Squared gradients of the same rows, [N, Hkv, d] FP32; undefined where the statistics have none. Of keys they are
// those before RoPE alone.
at::Tensor codebook_row_gradients(const Statistics& statistics, std::size_t layer, Side side, std::int64_t sink,
                                  std::int64_t most);

// Second moment of what a query does to keys before RoPE, or metric of errors in them, [Hkv, d, d] FP64: of the metric
// of the KL as it was collected; else of queries before RoPE, averaged over distances below kWeighedContext.
enum class PreRopeMoment { kQueries, kMetric };
at::Tensor pre_rope_moment(const Statistics& statistics, std::size_t layer, PreRopeMoment kind, MetricSource source);

struct CodebookBasisFit {
  SideTransform transform;  // clip off, no codebook yet
  at::Tensor weights;       // [Hkv, d] FP32, not negative, of the channels of that basis; undefined: all alike
};

// rows: of codebook_rows(). Not for CodebookBasis::kRotation, whose transform comes from the fit of method oscar.
CodebookBasisFit fit_codebook_basis(const Statistics& statistics, const FitOptions& options, std::size_t layer,
                                    Side side, const CodebookSide& spec, const at::Tensor& rows);

// Squared gradients [N, Hkv, d] to the rows as squared gradients to what the transform makes of them, [Hkv, N, d]: the
// diagonal of B^T diag(g^2) B with B the way back, exact where the transform scales and reorders channels.
at::Tensor gradients_to_basis(const SideTransform& transform, Side side, const at::Tensor& gradients);

// Rows [N, Hkv, d] in the basis of a transform, [Hkv, N, d] FP32, and back.
at::Tensor to_basis(const SideTransform& transform, const at::Tensor& rows);
at::Tensor from_basis(const SideTransform& transform, Side side, const at::Tensor& rows);

}  // namespace oscar
