// Sums and rows of a collecting run on a GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "collect/far_pairs.h"
#include "collect/unrotation.h"
#include "model/attention.h"

namespace oscar {

// BF16 queries, keys and values as FP32 matrices per KV head, by one kernel on a GPU (kernels/gram/head_rows.h). ATen's
// conversions, products and copies give the same bits. All functions do nothing and return undefined tensors if the
// kernel does not support x. If CUDA is off, CMake compiles no_cuda/device_sums.cpp.

// x [T, H, d] -> [Hkv, T g, d]: for each token the heads of the group, one after another.
at::Tensor device_rows(const at::Tensor& x, std::int64_t kv_heads);
// The same for rows before RoPE: undo_rope() with the rotations of x's tokens.
at::Tensor device_rows_before(const at::Tensor& x, std::int64_t kv_heads, const Unrotation::Rows& rows);
// x [T, Hkv, d], each row times the square root of its weight, [Hkv, T] FP32.
at::Tensor device_weighted_rows(const at::Tensor& x, const at::Tensor& weight);
// x [T, H, d] -> [H, T, d]; `copies` of each head, one after another.
at::Tensor device_head_rows(const at::Tensor& x, std::int64_t copies = 1);
// Rows of x [C, H, d] times the square root of their weight, [H, C] FP32 with any stride between heads. Result [2, Hkv,
// g C, d]: with RoPE applied and before RoPE; the heads of a group one after another.
at::Tensor device_far_rows(const at::Tensor& x, std::int64_t kv_heads, const at::Tensor& weight,
                           const Unrotation::Rows& rows);

// Second moments on a GPU: the tensor-core Gram of BF16 rows (kernels/gram/gram.h), and products of FP32 rows with the
// same bits as ATen's (kernels/gram/ordered_gram.h). If CUDA is off, CMake compiles no_cuda/device_sums.cpp.

// sum += x^T x for each KV head, x [T, H, d] BF16 on the device of sum [Hkv, d, d] FP64. Returns false and does nothing
// if no kernel is built for x.
bool device_gram(at::Tensor& sum, const at::Tensor& x);

// The same for rows with a large mean, multiplied about the mean of this call's rows; row_sum [Hkv, d] FP64 += 1 x.
bool device_gram_about_mean(at::Tensor& sum, at::Tensor& row_sum, const at::Tensor& x);

// sum [Hkv, d, d] FP64 += x^T x, x [Hkv, n, d] FP32 contiguous. FP32 products of `block` rows at a time give the same
// bits as gram_of() in accumulator.cpp on a GPU. Returns false and does nothing if no kernel is built for x.
bool device_ordered_gram(at::Tensor& sum, const at::Tensor& x, std::int64_t block);

// x^T x in FP32, [runs.size(), M, d, d], of runs [M, n, d] FP32 contiguous on one GPU. It adds the n rows of each run
// one after another, as at::bmm does. Supports only shapes that device_ordered_gram() is built for.
at::Tensor device_long_grams(const std::vector<at::Tensor>& runs);

// How much key errors move the attention output, computed on a GPU by one kernel (kernels/far_pairs/far_pair_sums.h).
// CPU reference: the blocks of FarPairAccumulator. CMake compiles no_cuda/device_sums.cpp if CUDA is off.

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
