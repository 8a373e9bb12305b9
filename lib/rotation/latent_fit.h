// A shared K/V latent (MLA, model/latent_attention.h) is one cached vector per token, which is key and value. So one
// transform serves both sides. It is fitted to the sum of an error's cost as a key (metric of W_UK) and as a value
// (metric of W_UV and W_O). The latent channels and the RoPE channels stay separate. Their covariance depends only on
// the positions of the calibration prompts, so it is set to zero.
#pragma once

#include <cstdint>

#include "rotation/fit_options.h"
#include "rotation/fit_result.h"
#include "statistics/statistics.h"

namespace oscar {

// Channels of the shared vector: the latent channels first, then the RoPE channels.
struct LatentParts {
  std::int64_t rank = 0, rotated = 0;  // rank 0: the statistics have separate keys and values
};

// InputError if the parts do not add up to one head of head_dim channels.
LatentParts latent_parts(const Statistics& statistics);

// UsageError for options that would treat keys and values differently, if the statistics are of a shared K/V latent.
void check_latent_options(const Statistics& statistics, const FitOptions& options);

// Statistics whose keys are the shared vector with the summed metric, with both parts separate. Metrics of pairs
// outside the windows have one unit (energy of the layer's output) and are added. Q^T Q and W_O^T W_O do not, so they
// are weighted such that each is half of the cost of the vector's covariance.
Statistics summed_statistics(const Statistics& statistics, const FitOptions& options);

// Method oscar: a rotation of each part, composed of the eigenvectors of that part's metric. target: [1, d, d] FP64.
// vectors: [1, d, d] of both parts by ascending eigenvalue.
SideTransform latent_rotation(const at::Tensor& target, const LatentParts& parts, std::int64_t layer,
                              c10::Device device, at::Tensor& vectors);

// The transform of keys as a transform of values: x' = x forward for both, o = o' query_side^T.
SideTransform as_value_side(const SideTransform& key);

}  // namespace oscar
