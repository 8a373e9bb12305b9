// A copy, in the memory of a GPU, of what a cache on the CPU holds: BF16 rows and pages, the same bytes in the same
// pages. The cache codes on the CPU, update() copies what has changed, kernels read the copy.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "codec/side.h"
#include "kernels/general_attention.h"

namespace oscar {

// Keys or values of one layer of one sequence, as they lie on the CPU.
struct HeldSide {
  const std::uint16_t *sink = nullptr, *ring = nullptr;  // [rows, Hkv, d] BF16
  std::int64_t sink_rows = 0, ring_rows = 0;             // most rows; token i behind the sink is in row i mod ring_rows
  std::int64_t tokens = 0, body = 0;                     // all, and coded ones behind the sink
  const std::uint8_t* pool = nullptr;                    // [.., page_bytes]; null: the other side has the pages of both
  const std::int32_t* pages = nullptr;                   // ids of the sequence, at least ceil(body / page_tokens)
  std::int64_t page_bytes = 0, page_tokens = 0;
};

class DeviceMirror {
 public:
  DeviceMirror(std::int64_t layers, std::int64_t kv_heads, std::int64_t head_dim, at::Device device);

  // Copies the tokens that were appended, and the pages that were written, since the last call for this place.
  void update(std::int64_t layer, std::int64_t sequence, Side side, const HeldSide& held);
  void release(std::int64_t sequence);

  // [rows so far, Hkv, d] BF16 of an updated place; null where it has none.
  const std::uint16_t* sink(std::int64_t layer, std::int64_t sequence, Side side) const;
  const std::uint16_t* ring(std::int64_t layer, std::int64_t sequence, Side side) const;
  const at::Tensor& pool(std::int64_t layer, Side side) const;  // [pages, page_bytes] bytes, or undefined
  const std::uint8_t* pages(std::int64_t layer, Side side) const;
  // For the general kernel. page_table: the page ids of `held` on the device.
  kernels::GeneralSequenceSide sequence_side(std::int64_t layer, std::int64_t sequence, Side side, const HeldSide& held,
                                             const std::int32_t* page_table) const;

  std::uint64_t bytes() const;

 private:
  struct Rows {
    at::Tensor sink, ring;
    std::int64_t tokens = 0, body = 0;  // that are in the copy
  };
  static std::size_t at(Side side) { return side == Side::kKey ? 0 : 1; }
  const Rows& rows(std::int64_t layer, std::int64_t sequence, Side side) const;
  void copy_rows(at::Tensor& to, const std::uint16_t* from, std::int64_t first, std::int64_t count,
                 std::int64_t most) const;
  void copy_pages(at::Tensor& pool, const HeldSide& held, std::int64_t first, std::int64_t count) const;

  std::int64_t kv_heads_, head_dim_;
  at::Device device_;
  std::vector<std::array<at::Tensor, 2>> pools_;                                 // [layers]
  std::map<std::pair<std::int64_t, std::int64_t>, std::array<Rows, 2>> places_;  // of (layer, sequence)
};

}  // namespace oscar
