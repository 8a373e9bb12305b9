// The Hadamard matrix of a head: Sylvester order, normalized, symmetric, and its own inverse.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace oscar {

// Largest power of two that divides d (d >= 1): the size of a Hadamard block. It is d itself if d is a power of two.
std::int64_t hadamard_block(std::int64_t d);

// [d, d], FP64 on the CPU unless `options` differ. If d is a power of two: H[i, j] = (-1)^popcount(i & j) / sqrt(d).
// Otherwise block-diagonal, d/B copies of the matrix of size B = hadamard_block(d). Symmetric and orthogonal in both
// cases.
at::Tensor hadamard_matrix(std::int64_t d, const at::TensorOptions& options = at::TensorOptions(at::kDouble));

}  // namespace oscar
