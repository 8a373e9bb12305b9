// How much key errors move the attention output, computed on a GPU by one kernel (kernels/far_pairs/far_pair_sums.h).
// CPU reference: the blocks of FarPairAccumulator. CMake compiles no_cuda/device_far_pairs.cpp if CUDA is off.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "collect/far_pairs.h"
#include "model/attention.h"

namespace oscar {

// Values [Hq, T, d] of one sequence minus their center, each stored as the sum of two BF16 numbers.
struct SplitValues {
  at::Tensor high, low;  // [Hq, T, d] BF16
  at::Tensor norm;       // [Hq, T] FP32 |high + low|^2
};

struct FarSums {
  at::Tensor moved;  // [Hq, C] FP32 sum_j p_ij^2 |u_j - w_i|^2 over the keys j outside the windows of query i
  at::Tensor seen;   // [Hq, C] FP32 sum_j p_ij^2 over the same keys
};

// True if the kernel supports this layer: BF16 on a GPU, a head size that is built, causal attention over all keys
// without a sliding window, a chunk or a soft cap.
bool device_far_pairs_built(const AttentionInput& input);

// u: [Hq, T, d] FP32 on a GPU, center: [Hq, d]. EnvironmentError when the GPU fails.
SplitValues split_values(const at::Tensor& u, const at::Tensor& center);

// q [T, Hq, d] and k [T, Hkv, d] of one sequence; queries [first, first + C), first >= sink + recent; w [Hq, C, d]
// FP32, which includes the center [Hq, d]. input: provides scale and sink logits. EnvironmentError when the GPU fails.
FarSums device_far_pairs(const AttentionInput& input, const at::Tensor& q, const at::Tensor& k, const SplitValues& u,
                         const at::Tensor& w, const at::Tensor& center, std::int64_t first, const FarPairs& pairs);

}  // namespace oscar
