// Latent attention (model/latent_attention.h) caches one vector for each token, which is key and value at once: so one
// transform serves both sides, fitted to the sum of what an error in the vector costs as a key (metric of W_UK) and as
// a value (metric of W_UV and W_O). The latent and the channels that turn with position stay apart: how they vary
// together depends on the positions of the calibration prompts alone, and is taken for zero.
#pragma once

#include <cstdint>

#include "rotation/fit_options.h"
#include "rotation/fit_result.h"
#include "statistics/statistics.h"

namespace oscar {

// Channels of the one vector: the latent first, then those that turn.
struct LatentParts {
  std::int64_t rank = 0, rotated = 0;  // rank 0: the statistics are of keys and values apart
};

// InputError where the parts do not make up one head of head_dim channels.
LatentParts latent_parts(const Statistics& statistics);

// UsageError for options that would treat keys and values differently, where the statistics are of latent attention.
void check_latent_options(const Statistics& statistics, const FitOptions& options);

// Statistics in which the keys are the one vector, with the summed metric, and both parts apart. Far-pair metrics are
// in one unit (energy of the layer's output) and are added; Q^T Q and W_O^T W_O are not, so that each is weighed to
// take half of what the vector's covariance costs.
Statistics summed_statistics(const Statistics& statistics, const FitOptions& options);

// Method oscar: the rotation of each part, composed of the eigenvectors of its own metric. target: [1, d, d] FP64.
// vectors: [1, d, d] of both parts by ascending eigenvalue.
SideTransform latent_rotation(const at::Tensor& target, const LatentParts& parts, std::int64_t layer,
                              c10::Device device, at::Tensor& vectors);

// What the transform of keys is as that of values: x' = x forward either way, o = o' query_side^T.
SideTransform as_value_side(const SideTransform& key);

}  // namespace oscar
