// The fit of methods with learned codebooks (registry/codebook_spec.h).
#pragma once

#include "rotation/fit_options.h"
#include "rotation/fit_result.h"
#include "statistics/statistics.h"

namespace oscar {

// Rows that k-means has to have for each centroid. With fewer than 8 a centroid is little more than one row and codes
// nothing but the calibration text: refused. The papers have at least 32 (CQ: 16 x 2,048 tokens for 1,024 centroids;
// TaSQ 128; OSCAR's fork 195), below which a warning says so.
inline constexpr std::int64_t kFewestRowsPerCentroid = 8, kRowsPerCentroid = 32;

// Sampled tokens that a method's codebooks should be learned from, as CQ has it; 0: it has none.
std::int64_t codebook_tokens(const CodebookSpec& spec, std::int64_t kv_heads);

std::int64_t codebook_steps(const Statistics& statistics, const FitOptions& options);  // how often on_step is called

// Transforms with codebooks, and for sides without one those of method oscar with their clips. Nothing is predicted.
// UsageError for a head size that groups do not divide, InputError for too few sampled rows or statistics that lack
// something, NumericalError, InterruptedError.
FitResult fit_codebooks(const Statistics& statistics, const FitOptions& options);

}  // namespace oscar
