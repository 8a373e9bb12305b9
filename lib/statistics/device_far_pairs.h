// What errors in keys move, on a GPU, by one kernel (kernels/far_pairs/far_pairs.h). CPU reference: the blocks of
// FarPairAccumulator. CMake chooses no_cuda/device_far_pairs.cpp where CUDA is off.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "model/attention.h"
#include "statistics/far_pairs.h"

namespace oscar {

// Values [Hq, T, d] of one sequence less their center, each the sum of two BF16 numbers.
struct SplitValues {
  at::Tensor high, low;  // [Hq, T, d] BF16
  at::Tensor norm;       // [Hq, T] FP32 |high + low|^2
};

struct FarSums {
  at::Tensor moved;  // [Hq, C] FP32 sum_j p_ij^2 |u_j - w_i|^2 over the far keys j of query i
  at::Tensor seen;   // [Hq, C] FP32 sum_j p_ij^2
};

// Whether the kernel takes this layer: BF16 on a GPU, a head size that is built, keys up to the query without a window,
// a chunk or a soft cap.
bool device_far_pairs_built(const AttentionInput& input);

// u: [Hq, T, d] FP32 on a GPU, center: [Hq, d]. EnvironmentError when the GPU fails.
SplitValues split_values(const at::Tensor& u, const at::Tensor& center);

// q [T, Hq, d] and k [T, Hkv, d] of one sequence; queries [first, first + C), first >= sink + recent; w [Hq, C, d]
// FP32 with the center [Hq, d] in it. input: for scale and sink logits. EnvironmentError when the GPU fails.
FarSums device_far_pairs(const AttentionInput& input, const at::Tensor& q, const at::Tensor& k, const SplitValues& u,
                         const at::Tensor& w, const at::Tensor& center, std::int64_t first, const FarPairs& pairs);

}  // namespace oscar
