// The codes of a method for rows in GPU memory (kernels/tiles/code_tiles.h). CPU reference: tile_codes.h. If CUDA is
// off, CMake compiles no_cuda/device_codes.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "registry/method_spec.h"

namespace oscar {

// Codes rows in place: [T, H, d] FP32 contiguous on a GPU, T a multiple of tile_tokens(side). EnvironmentError if the
// kernels are not built for the size.
void code_rows_on_device(const SideCode& side, const at::Tensor& rows);

// Hadamard transform in place, in blocks of `order` channels, of rows [T, H, d] FP32 contiguous on a GPU. Same bits as
// hadamard_rows().
void hadamard_on_device(const at::Tensor& rows, std::int64_t order);

// [T, 1, 1] FP32 norms of rows [T, H, d] FP32 contiguous on a GPU. Same bits as token_norm() of group_codes.h.
at::Tensor token_norms_on_device(const at::Tensor& rows);

}  // namespace oscar
