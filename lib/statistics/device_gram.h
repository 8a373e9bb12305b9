// The tensor-core Gram of BF16 rows on a GPU (kernels/gram/gram.h); no_cuda/device_gram.cpp where CUDA is off.
#pragma once

#include <ATen/core/Tensor.h>

namespace oscar {

// sum += x^T x for each KV head, x [T, H, d] BF16 on the device of sum [Hkv, d, d] FP64. False, and nothing done, where
// no kernel is built for x.
bool device_gram(at::Tensor& sum, const at::Tensor& x);

// The same for rows with a large mean, multiplied about the mean of this call's rows; row_sum [Hkv, d] FP64 += 1 x.
bool device_gram_about_mean(at::Tensor& sum, at::Tensor& row_sum, const at::Tensor& x);

}  // namespace oscar
