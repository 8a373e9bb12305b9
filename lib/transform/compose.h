// M = R H P, the published composition "r_h_pbr" (OSCAR, arXiv 2605.17757; reference layout: rotation files v1), and
// its extension to head sizes that are not a power of two.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace oscar {

// Largest power of two that divides d (d >= 1): the size of a Hadamard block. It is d itself if d is a power of two.
std::int64_t hadamard_block(std::int64_t d);

// [d, d], FP64 on the CPU unless `options` differ. If d is a power of two: H[i, j] = (-1)^popcount(i & j) / sqrt(d)
// (Sylvester order). Otherwise block-diagonal, d/B copies of the matrix of size B = hadamard_block(d). Symmetric and
// orthogonal in both cases, so it is its own inverse.
at::Tensor hadamard_matrix(std::int64_t d, const at::TensorOptions& options = at::TensorOptions(at::kDouble));

// The lowest `bits` bits of i in reverse order.
std::int64_t bit_reverse(std::int64_t i, int bits);

// P as indices: (X P)[:, j] = X[:, perm[j]]. If d is a power of two: perm[j] = d - 1 - bitreverse(j) (d = 8: 7 3 5 1 6
// 2 4 0). Otherwise the same inside each block of hadamard_block(d) channels; blocks keep their positions.
std::vector<std::int64_t> bit_reversal_permutation(std::int64_t d);

// The eigenvector (rank 0 = smallest eigenvalue) in each column before the block-diagonal Hadamard. One block (d a
// power of two): the identity, as published. m = d/B blocks: ranks are dealt back and forth over the blocks (0 1 2 | 2
// 1 0 | 0 1 2 ...), so that every block gets strong and weak directions. Each Hadamard block then spreads its share
// evenly over its own channels. Inside a block ranks ascend.
std::vector<std::int64_t> rank_distribution(std::int64_t d);

// eigenvectors [..., d, d] FP64, columns in ascending eigenvalue order -> M of the same shape. Row vectors: x' = x M.
// If d is a power of two: M = R H P. Otherwise M = (R S) H_blocks P_blocks with S = rank_distribution(d).
at::Tensor compose_rotation(const at::Tensor& eigenvectors);

// max |M M^T - I| over a batch [..., d, d] (any float type); NaN or infinity gives infinity.
double orthogonality_error(const at::Tensor& matrices);

}  // namespace oscar
