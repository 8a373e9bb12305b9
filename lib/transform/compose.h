// M = R H P, the published composition "r_h_pbr" (OSCAR, arXiv 2605.17757; reference layout: rotation files v1).
#pragma once

#include <ATen/core/Tensor.h>

namespace oscar {

// eigenvectors [..., d, d] FP64, columns in ascending eigenvalue order -> M of the same shape. Row vectors: x' = x M.
// If d is a power of two: M = R H P. Otherwise M = (R S) H_blocks P_blocks with S = rank_distribution(d).
at::Tensor compose_rotation(const at::Tensor& eigenvectors);

// max |M M^T - I| over a batch [..., d, d] (any float type); NaN or infinity gives infinity.
double orthogonality_error(const at::Tensor& matrices);

}  // namespace oscar
