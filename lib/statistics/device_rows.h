// Rows of BF16 queries, keys and values as FP32 matrices of the KV heads, by one kernel on a GPU
// (kernels/gram/head_rows.h), with the bits that ATen's conversions, products and copies give. All return undefined
// tensors, and do nothing, where the kernel does not take x. no_cuda/device_rows.cpp where CUDA is off.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "statistics/unrotation.h"

namespace oscar {

// x [T, H, d] -> [Hkv, T g, d], the group's heads of a token one after another.
at::Tensor device_rows(const at::Tensor& x, std::int64_t kv_heads);
// The same before RoPE: undo_rope() with the rotations of x's tokens.
at::Tensor device_rows_before(const at::Tensor& x, std::int64_t kv_heads, const Unrotation::Rows& rows);
// x [T, Hkv, d], each row times the square root of its weight, [Hkv, T] FP32.
at::Tensor device_weighted_rows(const at::Tensor& x, const at::Tensor& weight);
// x [T, H, d] -> [H, T, d]; `copies` of each head, one after another.
at::Tensor device_head_rows(const at::Tensor& x, std::int64_t copies = 1);
// Rows of x [C, H, d] times the square root of their weight, [H, C] FP32 of any stride between heads: [2, Hkv, g C, d],
// as they are and before RoPE, the group's heads one after another.
at::Tensor device_far_rows(const at::Tensor& x, std::int64_t kv_heads, const at::Tensor& weight,
                           const Unrotation::Rows& rows);

}  // namespace oscar
