// The codes of a method on rows in the memory of a GPU (kernels/tiles/code_tiles.h). CPU reference: tile_codes.h. CMake
// chooses no_cuda/device_codes.cpp where CUDA is off.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "registry/method_spec.h"

namespace oscar {

// rows: [T, H, d] FP32 contiguous on a GPU, T a multiple of tile_tokens(side); coded in place. EnvironmentError where
// the kernels are not built for the size.
void code_rows_on_device(const SideCode& side, const at::Tensor& rows);

// Hadamard transform of blocks of `order` channels of rows [T, H, d] FP32 contiguous on a GPU, in place: the same bits
// as hadamard_rows().
void hadamard_on_device(const at::Tensor& rows, std::int64_t order);

// [T, 1, 1] FP32 of rows [T, H, d] FP32 contiguous on a GPU: the same bits as token_norm() of group_codes.h.
at::Tensor token_norms_on_device(const at::Tensor& rows);

}  // namespace oscar
