// A copy, in the memory of a GPU, of what KvCache holds on the CPU: BF16 rows and pages, the same bytes in the same
// pages. The cache codes on the CPU, update() copies what has changed, kernels read the copy.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "cache/kv_cache.h"
#include "kernels/fallback/fallback_attention.h"
#include "layout/side.h"

namespace oscar {

class DeviceMirror {
 public:
  DeviceMirror(std::int64_t layers, std::int64_t kv_heads, std::int64_t head_dim, at::Device device);

  // Copies the tokens that were appended, and the pages that were written, since the last call for this place. pages:
  // false where the other side has the pages of both.
  void update(std::int64_t layer, std::int64_t sequence, Side side, const SideView& held, bool pages);
  void release(std::int64_t sequence);

  const at::Tensor& pool(std::int64_t layer, Side side) const;  // [pages, page_bytes] bytes, or undefined
  const std::uint8_t* pages(std::int64_t layer, Side side) const;
  // An updated place for a kernel. page_table: the page ids of `held` on the device.
  kernels::FallbackSequenceSide sequence_side(std::int64_t layer, std::int64_t sequence, Side side,
                                              const SideView& held, const std::int32_t* page_table) const;

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
  void copy_pages(at::Tensor& pool, const SideView& held, std::int64_t first, std::int64_t count) const;

  std::int64_t kv_heads_, head_dim_;
  at::Device device_;
  std::vector<std::array<at::Tensor, 2>> pools_;                                 // [layers]
  std::map<std::pair<std::int64_t, std::int64_t>, std::array<Rows, 2>> places_;  // of (layer, sequence)
};

}  // namespace oscar
