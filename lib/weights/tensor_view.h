// Bytes of a mapped file as at::Tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "checkpoint/safetensors.h"

namespace oscar {

// A copy of a checkpoint tensor in the given dtype; unaligned data is handled. InputError for a stored type that is no
// number of 16 or more bits, no integer and no bool.
at::Tensor to_tensor(const TensorView& view, at::ScalarType dtype, at::Device device = at::kCPU);

// A copy in the stored type, which may also be FP8 E4M3. InputError for the others.
at::Tensor stored_tensor(const TensorView& view, at::Device device);

// Rows `ids` of a [rows, columns] tensor, read straight from the file: [ids, columns]. Ids are in range.
at::Tensor gather_rows(const TensorView& view, const std::vector<std::int32_t>& ids, at::ScalarType dtype,
                       at::Device device);

}  // namespace oscar
