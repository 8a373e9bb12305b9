// The codes of a method on rows in the memory of a GPU (kernels/code_tiles.h). CPU twin: tile_codes.h. CMake chooses
// device_codes_absent.cpp where CUDA is off.
#pragma once

#include <ATen/core/Tensor.h>

#include "methods/description.h"

namespace oscar {

// rows: [T, H, d] FP32 contiguous on a GPU, T a multiple of tile_tokens(side); coded in place. EnvironmentError where
// the kernels are not built for the size.
void code_rows_on_device(const SideDescription& side, bool is_value, const at::Tensor& rows);

}  // namespace oscar
