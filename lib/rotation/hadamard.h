// The Hadamard matrix of a head: Sylvester order, normalized, symmetric, its own inverse.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace oscar {

// Largest power of two that divides d (d >= 1): the size of a Hadamard block. d itself when d is a power of two.
std::int64_t hadamard_block(std::int64_t d);

// [d, d], FP64 on the CPU unless `options` say otherwise. H[i, j] = (-1)^popcount(i & j) / sqrt(d) for d a power of
// two; otherwise block-diagonal, d/B copies of the matrix of size B = hadamard_block(d). Symmetric and orthogonal in
// both cases.
at::Tensor hadamard_matrix(std::int64_t d, const at::TensorOptions& options = at::TensorOptions(at::kDouble));

}  // namespace oscar
