#include "weights/tensor_view.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>

#include "base/errors.h"
#include "distributed/byte_gather.h"

namespace oscar {
namespace {

[[noreturn]] void refuse_type(const TensorView& view) {
  throw InputError("The tensor " + view.name + " has dtype " + dtype_name(view.dtype) +
                   ", which cannot be used here; expected BF16, F16, F32, F64 or an integer type.");
}

at::ScalarType scalar_type(const TensorView& view) {
  switch (view.dtype) {
    case DType::kBool:
      return at::kBool;
    case DType::kU8:
      return at::kByte;
    case DType::kI8:
      return at::kChar;
    case DType::kI16:
      return at::kShort;
    case DType::kI32:
      return at::kInt;
    case DType::kI64:
      return at::kLong;
    case DType::kF16:
      return at::kHalf;
    case DType::kBF16:
      return at::kBFloat16;
    case DType::kF32:
      return at::kFloat;
    case DType::kF64:
      return at::kDouble;
    case DType::kF8E4M3:
      return at::kFloat8_e4m3fn;
    default:
      refuse_type(view);
  }
}

// By several threads: one alone copies slower than the bus of a GPU takes, and waits for each page of the file that it
// is the first to touch.
void copy_bytes(const std::byte* from, std::int64_t bytes, void* to) {
  constexpr std::int64_t kPiece = std::int64_t{1} << 20;
  at::parallel_for(0, (bytes + kPiece - 1) / kPiece, 1, [&](std::int64_t first, std::int64_t last) {
    const std::int64_t begin = first * kPiece, end = std::min(last * kPiece, bytes);
    std::memcpy(static_cast<std::byte*>(to) + begin, from + begin, static_cast<std::size_t>(end - begin));
  });
}

// Through pieces of pinned memory, which the allocator hands out again when the GPU has them: while one piece crosses
// the bus the next one is filled, and a large tensor needs no pinned copy of its size.
void copy_to_gpu(const TensorView& view, const at::Tensor& stored) {
  constexpr std::int64_t kPiece = std::int64_t{32} << 20;
  const at::Tensor bytes = stored.view({-1}).view(at::kByte);
  const auto size = static_cast<std::int64_t>(view.data.size());
  for (std::int64_t first = 0; first < size; first += kPiece) {
    const std::int64_t count = std::min(kPiece, size - first);
    const at::Tensor piece = at::empty({count}, at::TensorOptions(at::kByte).pinned_memory(true));
    copy_bytes(view.data.data() + first, count, piece.mutable_data_ptr());
    bytes.narrow(0, first, count).copy_(piece, /*non_blocking=*/true);
  }
}

}  // namespace

// safetensors promises no alignment, and a file may be unmapped later: copy the bytes first. Conversion happens on the
// target device, so that the narrower stored type is what crosses the bus.
at::Tensor stored_tensor(const TensorView& view, at::Device device) {
  if (ByteGather* gather = current_gather();
      device.is_cuda() && gather != nullptr && view.data.size() >= kLeastGatherBytes) {
    return gather->upload(view.data).view(scalar_type(view)).view(view.shape);
  }
  at::Tensor stored = at::empty(view.shape, at::TensorOptions(scalar_type(view)).device(device));
  if (view.data.empty()) return stored;
  if (device.is_cuda()) {
    copy_to_gpu(view, stored);
  } else {
    copy_bytes(view.data.data(), static_cast<std::int64_t>(view.data.size()), stored.mutable_data_ptr());
  }
  return stored;
}

at::Tensor to_tensor(const TensorView& view, at::ScalarType dtype, at::Device device) {
  if (view.dtype == DType::kF8E4M3) refuse_type(view);  // without its scale it means nothing
  return stored_tensor(view, device).to(dtype);
}

at::Tensor gather_rows(const TensorView& view, const std::vector<std::int32_t>& ids, at::ScalarType dtype,
                       at::Device device) {
  const std::int64_t columns = view.shape.at(1);
  const std::size_t row = static_cast<std::size_t>(columns) * dtype_size(view.dtype);
  at::Tensor stored =
      at::empty({static_cast<std::int64_t>(ids.size()), columns}, at::TensorOptions().dtype(scalar_type(view)));
  auto* out = static_cast<std::byte*>(stored.mutable_data_ptr());
  for (const std::int32_t id : ids) {
    std::memcpy(out, view.data.data() + static_cast<std::size_t>(id) * row, row);
    out += row;
  }
  return stored.to(device).to(dtype);
}

}  // namespace oscar
