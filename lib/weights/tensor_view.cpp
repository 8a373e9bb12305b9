#include "weights/tensor_view.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <array>
#include <cstring>
#include <mutex>

#include "base/errors.h"
#include "base/files.h"

namespace oscar {
namespace {

[[noreturn]] void refuse_type(const TensorView& view) {
  throw InputError("The tensor " + view.name + " has dtype " + view.type_text() +
                   ", which cannot be used here; expected BF16, F16, F32, F64 or an integer type.");
}

at::ScalarType scalar_type(const TensorView& view) {
  switch (view.dtype) {
    case DType::kBool:
      return at::kBool;
    case DType::kU8:
    case DType::kF8E8M0:  // as bytes: no arithmetic uses this type
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

constexpr std::int64_t kPiece = std::int64_t{16} << 20;
constexpr std::size_t kPieces = 4;

struct Piece {
  at::Tensor memory;  // [kPiece], pinned; undefined if not yet used
  c10::Event crossed{c10::DeviceType::CUDA};
};

struct Ring {
  std::mutex mutex;
  std::array<Piece, kPieces> pieces;
  std::size_t next = 0;

  Piece& take() {
    Piece& piece = pieces[next];
    next = (next + 1) % kPieces;
    if (!piece.memory.defined()) {
      piece.memory = at::empty({kPiece}, at::TensorOptions(at::kByte).pinned_memory(true));
    } else {
      piece.crossed.synchronize();
    }
    return piece;
  }
};

// Copies bytes of a mapped file to `to`, [bytes] uint8 on a GPU, on the current stream. Several threads read them into
// alternating pieces of pinned memory. While one piece crosses the bus, the next is filled, so a large tensor needs no
// pinned copy of its size. The data is ready for that stream on return. InputError as in read_mapped().
void upload_file_bytes(std::span<const std::byte> from, const at::Tensor& to) {
  static Ring* const ring = new Ring;  // never deleted, because CUDA is gone at process exit
  const std::scoped_lock lock(ring->mutex);
  const c10::Stream stream = c10::impl::VirtualGuardImpl(to.device().type()).getStream(to.device());
  const auto size = static_cast<std::int64_t>(from.size());
  for (std::int64_t first = 0; first < size; first += kPiece) {
    const std::int64_t count = std::min(kPiece, size - first);
    Piece& piece = ring->take();
    read_mapped_by_threads(from.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)),
                           static_cast<std::byte*>(piece.memory.mutable_data_ptr()));
    to.narrow(0, first, count).copy_(piece.memory.narrow(0, 0, count), /*non_blocking=*/true);
    piece.crossed.record(stream);
  }
}

}  // namespace

// safetensors guarantees no alignment, and the file may be unmapped later, so the bytes are copied first. Conversion
// happens on the target device, so the narrower stored type crosses the bus.
at::Tensor stored_tensor(const TensorView& view, at::Device device) {
  at::Tensor stored = at::empty(view.shape, at::TensorOptions(scalar_type(view)).device(device));
  if (view.data.empty()) return stored;
  if (device.is_cuda()) {
    upload_file_bytes(view.data, stored.view({-1}).view(at::kByte));
  } else {
    read_mapped_by_threads(view.data, static_cast<std::byte*>(stored.mutable_data_ptr()));
  }
  return stored;
}

at::Tensor to_tensor(const TensorView& view, at::ScalarType dtype, at::Device device) {
  if (view.dtype == DType::kF8E4M3 || view.dtype == DType::kF8E8M0) refuse_type(view);  // meaningless without its scale
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
