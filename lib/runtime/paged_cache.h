// The three-tier cache of all layers on the CPU: the first tokens and the last ones in BF16, those between as codes in
// pages of 64 tokens. A token is quantised once, when it leaves the recent window. Any number of sequences of any
// length; page ids are shared by all layers, so one page table serves a sequence.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "kernels/decode_attention.h"
#include "runtime/page_codec.h"
#include "runtime/windows.h"

namespace oscar {

// Page ids from 0 on; released ids are used again first.
class PageAllocator {
 public:
  std::int32_t allocate();
  void release(std::int32_t page);  // std::invalid_argument for a page that is not in use
  std::int64_t pages_in_use() const { return in_use_; }
  std::int64_t pages_ever() const { return static_cast<std::int64_t>(used_.size()); }  // ids are below this

 private:
  std::vector<std::int32_t> free_;
  std::vector<bool> used_;
  std::int64_t in_use_ = 0;
};

struct LayerCacheSpec {
  bool quantised = true;             // false: every token stays in BF16
  std::vector<RowCodec> key, value;  // [Hkv], one layout for all heads of a side
};

class PagedCache {
 public:
  // InputError for a layout that the head size cannot carry.
  PagedCache(std::vector<LayerCacheSpec> layers, std::int32_t kv_heads, std::int32_t head_dim,
             const WindowPolicy& windows);
  ~PagedCache();

  // The next token of a sequence (a new one when the id is not known). key, value: [Hkv, d] BF16 bits, in the basis of
  // the cache. NumericalError, naming the place, when a token to be quantised is not finite.
  void append(std::int64_t layer, std::int64_t sequence, const std::uint16_t* key, const std::uint16_t* value);
  void release(std::int64_t sequence);  // its pages and windows; nothing happens for an unknown id

  std::int64_t tokens(std::int64_t layer, std::int64_t sequence) const;  // 0 for an unknown id
  // Pointers are valid until the next append or release.
  SequenceView view(std::int64_t layer, std::int64_t sequence) const;
  void describe(std::int64_t layer, DecodeAttentionParams& params) const;  // heads, page pool, layout, deviations
  const SidePages& key_pages(std::int64_t layer) const;
  const SidePages& value_pages(std::int64_t layer) const;

  std::int64_t pages_in_use() const { return allocator_.pages_in_use(); }
  std::uint64_t allocated_bytes() const;  // memory held by page pools and windows

 private:
  struct Layer;
  struct Sequence;
  void quantise(Layer& layer, std::int64_t layer_index, Sequence& sequence, std::int64_t begin, std::int64_t end);

  std::int32_t kv_heads_, head_dim_;
  WindowPolicy windows_;
  PageAllocator allocator_;
  std::vector<std::unique_ptr<Layer>> layers_;
  std::map<std::int64_t, std::unique_ptr<Sequence>> sequences_;
};

}  // namespace oscar
