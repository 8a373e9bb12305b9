#include "distributed/file_upload.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <mutex>

#include "base/files.h"

namespace oscar {
namespace {

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

}  // namespace

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

}  // namespace oscar
