// BF16 queries, keys and values as FP32 matrices per KV head, by one kernel on a GPU (kernels/gram/head_rows.h). ATen's
// conversions, products and copies give the same bits. All functions do nothing and return undefined tensors if the
// kernel does not support x. If CUDA is off, CMake compiles no_cuda/device_rows.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "collect/unrotation.h"

namespace oscar {

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

}  // namespace oscar
