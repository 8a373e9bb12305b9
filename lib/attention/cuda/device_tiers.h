// The KV cache of all layers in GPU memory: the counterpart of KvCache (cache/kv_cache.h) in main memory, with the same
// windows and pages for the same tokens. It decides what to code; kernels code it (page_writer.h). During a call its
// new rows are kept after the rows of the recent window. So the cache can be read as it was after each of its tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "attention/cuda/repeated_upload.h"
#include "cache/kv_cache.h"
#include "kernels/fallback/fallback_attention.h"
#include "kernels/quantize/quantize_pages.h"
#include "layout/side.h"
#include "model/attention.h"

namespace oscar {

class DeviceTiers {
 public:
  DeviceTiers(const KvCacheSpec& spec, at::Device device);

  // Appends keys or values of the new tokens of a batch, [T, Hkv, d] BF16, in the basis of the windows. Append both
  // sides of a layer before trim(). Returns what leaves the recent windows: row indices into rows(), and the first
  // position of each run.
  std::vector<kernels::PageRun> append(std::int64_t layer, const SequenceBatch& batch, Side side,
                                       const at::Tensor& rows);
  // Frees memory that the rows of a long call needed, once they are coded.
  void trim(std::int64_t layer);
  void release(std::int64_t sequence);

  std::int64_t tokens(std::int64_t layer, std::int64_t sequence) const;  // 0 for an unknown sequence
  std::int64_t coded(std::int64_t layer, std::int64_t sequence, Side side) const;
  const at::Tensor& rows(std::int64_t layer, Side side) const;  // BF16 rows of all sequences: [.., .., Hkv, d]
  const at::Tensor& pool(std::int64_t layer, Side side) const;  // [pages, page bytes], or undefined
  const std::vector<std::int32_t>& table(std::int64_t sequence, Side side) const;  // page ids
  // The side as it is after the first `tokens` tokens. page_table: table() on the device.
  kernels::FallbackSequenceSide view(std::int64_t layer, std::int64_t sequence, Side side, std::int64_t tokens,
                                     const std::int32_t* page_table) const;

  std::int64_t pages_in_use() const { return page_ids_[0].pages_in_use() + page_ids_[1].pages_in_use(); }
  std::uint64_t bytes() const;

 private:
  // State of one side of one layer of one sequence; counts start after the sink, except `tokens`.
  struct Held {
    std::int64_t tokens = 0, coded = 0;
    std::int64_t first = 0;  // token of the first row after the sink rows
  };
  struct Sequence {
    std::int64_t slot = 0;
    std::array<std::vector<std::int32_t>, 2> tables;  // page ids, by pool
    std::vector<std::array<Held, 2>> held;            // [layers]
  };
  // Rows of a sequence in its slot: sink rows, then recent rows.
  struct LayerSide {
    at::Tensor rows;   // [slots, capacity, Hkv, d] BF16
    at::Tensor pages;  // [pages, page bytes]
  };
  static std::size_t at(Side side) { return side == Side::kKey ? 0 : 1; }
  std::size_t pool_of(Side side) const { return spec_.shared_pages ? 0 : at(side); }
  const SideSpec& spec(Side side) const { return spec_.sides[at(side)]; }
  LayerSide& of(std::int64_t layer, std::size_t side) { return layers_[static_cast<std::size_t>(layer)][side]; }
  const LayerSide& of(std::int64_t layer, std::size_t side) const {
    return layers_[static_cast<std::size_t>(layer)][side];
  }
  Sequence& sequence(std::int64_t id);
  std::int64_t row_of(const Held& held, Side side, std::int64_t token) const;
  std::int64_t usual_capacity(Side side, std::int64_t tokens) const;
  void resize(at::Tensor& rows, std::int64_t slots, std::int64_t capacity) const;
  void move_to_front(const Sequence& s, Held& held, LayerSide& to, Side side) const;
  void make_room(std::int64_t layer, const SequenceBatch& batch, Side side);
  void add_runs(std::int64_t layer, Sequence& s, Side side, std::int64_t capacity, std::vector<kernels::PageRun>& runs);

  const KvCacheSpec& spec_;
  at::Device device_;
  std::array<PageAllocator, 2> page_ids_;
  PageAllocator slots_;
  std::vector<std::array<LayerSide, 2>> layers_;
  std::map<std::int64_t, Sequence> sequences_;
  std::array<RepeatedUpload<std::int64_t>, 2> places_;  // indices of the new rows
};

}  // namespace oscar
