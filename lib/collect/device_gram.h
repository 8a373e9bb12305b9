// Second moments on a GPU: the tensor-core Gram of BF16 rows (kernels/gram/gram.h), and products of FP32 rows with the
// same bits as ATen's (kernels/gram/ordered_gram.h). If CUDA is off, CMake compiles no_cuda/device_gram.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace oscar {

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

}  // namespace oscar
