// Converts bytes of a mapped file to at::Tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "checkpoint/safetensors.h"

namespace oscar {

// A copy of a checkpoint tensor in the given dtype; handles unaligned data. InputError unless the stored type is a
// number of at least 16 bits, an integer or bool.
at::Tensor to_tensor(const TensorView& view, at::ScalarType dtype, at::Device device = at::kCPU);

// A copy in the stored type, which may also be FP8 E4M3. InputError for other types.
at::Tensor stored_tensor(const TensorView& view, at::Device device);

// Rows `ids` of a [rows, columns] tensor, read directly from the file: [ids, columns]. The ids must be in range.
at::Tensor gather_rows(const TensorView& view, const std::vector<std::int32_t>& ids, at::ScalarType dtype,
                       at::Device device);

}  // namespace oscar
