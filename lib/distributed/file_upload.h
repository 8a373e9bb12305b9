// Uploads bytes of a mapped file to a GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>

namespace oscar {

// Copies the bytes to `to`, [bytes] uint8 on a GPU, on the current stream. Several threads read them into alternating
// pieces of pinned memory. While one piece crosses the bus, the next is filled, so a large tensor needs no pinned copy
// of its size. The data is ready for that stream on return. InputError as in read_mapped().
void upload_file_bytes(std::span<const std::byte> from, const at::Tensor& to);

}  // namespace oscar
