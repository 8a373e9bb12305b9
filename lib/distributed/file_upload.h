// Bytes of a mapped file on their way to a GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>

namespace oscar {

// Copies the bytes to `to`, [bytes] uint8 on a GPU, on the current stream. Several threads read them into pieces of
// pinned memory that are used by turns: while one piece crosses the bus the next one is filled, and a large tensor
// needs no pinned copy of its size. Ready for that stream when it returns; InputError as read_mapped().
void upload_file_bytes(std::span<const std::byte> from, const at::Tensor& to);

}  // namespace oscar
