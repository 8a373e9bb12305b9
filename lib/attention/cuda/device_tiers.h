// The KV cache of all layers in the memory of a GPU, as KvCache (cache/kv_cache.h) has it in main memory: the same
// windows, the same pages for the same tokens. It says what is to be coded, kernels code it (page_writer.h). The rows
// of a call lie behind those of the recent window until it ends, so that the cache can be read as it was after each of
// its tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "cache/kv_cache.h"
#include "kernels/fallback/fallback_attention.h"
#include "kernels/quantize/quantize_pages.h"
#include "layout/side.h"

namespace oscar {

class DeviceTiers {
 public:
  DeviceTiers(const KvCacheSpec& spec, at::Device device);

  // Keys or values of the next tokens of a sequence, [count, Hkv, d] BF16, in the basis of the windows; of both sides
  // before the next call for this layer. Returns what leaves the recent window: rows of recent_rows(), run after run.
  std::vector<kernels::PageRun> append(std::int64_t layer, std::int64_t sequence, Side side, const at::Tensor& rows);
  // Lets go of the recent rows that are coded.
  void trim(std::int64_t layer, std::int64_t sequence);
  void release(std::int64_t sequence);

  std::int64_t tokens(std::int64_t layer, std::int64_t sequence) const;  // 0 of an unknown sequence
  std::int64_t coded(std::int64_t layer, std::int64_t sequence, Side side) const;
  // [.., Hkv, d] BF16: of tokens behind the sink, from recent_first() on.
  const at::Tensor& recent_rows(std::int64_t layer, std::int64_t sequence, Side side) const;
  std::int64_t recent_first(std::int64_t layer, std::int64_t sequence, Side side) const;
  const at::Tensor& pool(std::int64_t layer, Side side) const;                     // [pages, page bytes], or undefined
  const std::vector<std::int32_t>& table(std::int64_t sequence, Side side) const;  // page ids
  // The side as it is after the first `tokens` tokens. page_table: table() on the device.
  kernels::FallbackSequenceSide view(std::int64_t layer, std::int64_t sequence, Side side, std::int64_t tokens,
                                     const std::int32_t* page_table) const;

  std::int64_t pages_in_use() const { return ids_[0].pages_in_use() + ids_[1].pages_in_use(); }
  std::uint64_t bytes() const;

 private:
  struct Rows {
    at::Tensor sink, recent;
    std::int64_t tokens = 0, first = 0, coded = 0;  // first, coded: behind the sink
  };
  static std::size_t at(Side side) { return side == Side::kKey ? 0 : 1; }
  std::size_t pool_of(Side side) const { return spec_.shared_pages ? 0 : at(side); }
  const SideSpec& spec(Side side) const { return spec_.sides[at(side)]; }
  Rows& rows(std::int64_t layer, std::int64_t sequence, Side side);
  const Rows& rows(std::int64_t layer, std::int64_t sequence, Side side) const;
  void keep_sink(Rows& held, const at::Tensor& rows, std::int64_t most) const;
  void make_pages(std::int64_t layer, std::int64_t sequence, Side side, std::int64_t count);

  const KvCacheSpec& spec_;
  at::Device device_;
  std::array<PageAllocator, 2> ids_;
  std::vector<std::array<at::Tensor, 2>> pools_;                                 // [layers]
  std::map<std::int64_t, std::array<std::vector<std::int32_t>, 2>> tables_;      // of each sequence
  std::map<std::pair<std::int64_t, std::int64_t>, std::array<Rows, 2>> places_;  // of (layer, sequence)
};

}  // namespace oscar
