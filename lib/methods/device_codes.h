// The codes of a method on rows in the memory of a GPU (kernels/tiles/code_tiles.h). CPU reference: tile_codes.h. CMake
// chooses no_cuda/device_codes.cpp where CUDA is off.
#pragma once

#include <ATen/core/Tensor.h>

#include "registry/method_spec.h"

namespace oscar {

// rows: [T, H, d] FP32 contiguous on a GPU, T a multiple of tile_tokens(side); coded in place. EnvironmentError where
// the kernels are not built for the size.
void code_rows_on_device(const SideCode& side, bool is_value, const at::Tensor& rows);

}  // namespace oscar
