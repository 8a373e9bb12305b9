// The KV cache of all layers in main memory. For each side of each sequence, the first and the last tokens are BF16
// rows, and the tokens between them are codes in pages (cache_pages.h). A token is coded once, when it leaves the
// recent window. It holds any number of sequences of any length. A page holds keys and values, and all layers
// share page ids, so one page table serves a sequence. Plain loops, no LibTorch.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "cache/cache_pages.h"
#include "layout/cache_windows.h"
#include "layout/side.h"

namespace oscar {

struct SideSpec {
  CacheWindows windows;                                  // all_in_sink() for a cache without codes
  std::vector<std::shared_ptr<const CachePages>> pages;  // [layers]
};

struct KvCacheSpec {
  std::int64_t kv_heads = 0, head_dim = 0;
  std::array<SideSpec, 2> sides;  // keys, values: equal windows, and pages of equal bytes and tokens
  // Latent attention: a token's key is its value, is kept once, and has this many BF16 channels beside it that are
  // never coded. 0: keys and values apart.
  std::int64_t rope_dim = 0;
};

// Windows of a cache with every token in BF16.
CacheWindows all_in_sink();

// BF16 rows of one side: token i of the tier is in row (first + i) mod capacity.
struct RowTier {
  const std::uint16_t* rows = nullptr;  // [capacity, Hkv, d]; not read if tokens is 0
  std::int64_t tokens = 0, first = 0, capacity = 0;
};

// One side of one layer of one sequence in its stored form. Pointers are valid until the next append or release.
struct SideView {
  RowTier sink, recent;
  std::int64_t body = 0;                // number of coded tokens, between sink and recent
  const std::uint8_t* pool = nullptr;   // pages of the layer, including other sequences' pages
  const std::int32_t* table = nullptr;  // [page_count()] page ids
  const CachePages* pages = nullptr;

  std::int64_t tokens() const { return sink.tokens + body + recent.tokens; }
  std::int64_t page_count() const { return (body + pages->tokens() - 1) / pages->tokens(); }
  const std::uint8_t* page(std::int64_t i) const { return pool + table[i] * pages->bytes(); }
};

class KvCache {
 public:
  explicit KvCache(KvCacheSpec spec);
  ~KvCache();

  // Appends the next tokens of several sequences, each listed once; an unknown id starts a new sequence. The bytes
  // equal those of one token at a time. for_each_part(n, code) must call code(i) once for each i in [0, n), in any
  // order and on any threads. A part is a page. NumericalError naming the place if a token to be coded is not finite.
  struct NextRows {
    std::int64_t sequence;
    const std::uint16_t *keys, *values;  // [count, Hkv, d] BF16 bits
    std::int64_t count;
    const std::uint16_t* rope = nullptr;  // [count, R] with latent attention, where `values` is not read
  };
  using ForEachPart = std::function<void(std::int64_t, const std::function<void(std::int64_t)>&)>;
  void append_rows(std::int64_t layer, const std::vector<NextRows>& rows, const ForEachPart& for_each_part);
  void release(std::int64_t sequence);  // frees its pages and windows; no effect for an unknown id

  std::int64_t tokens(std::int64_t layer, std::int64_t sequence) const;        // 0 for an unknown id
  SideView view(std::int64_t layer, std::int64_t sequence, Side side) const;   // the id must be known
  const std::uint16_t* rope(std::int64_t layer, std::int64_t sequence) const;  // [tokens, R] of latent attention
  std::int64_t pages_in_use() const;
  std::uint64_t allocated_bytes() const;  // memory held by pages and windows

 private:
  struct Rows;
  struct Sequence;
  static std::size_t at(Side side) { return side == Side::kKey ? 0 : 1; }
  const SideSpec& spec(Side side) const { return spec_.sides[at(side)]; }
  struct NewRows {
    const std::uint16_t* rows;  // [count, Hkv, d]
    std::int64_t count;
  };
  // Tokens [begin, end) after the sink, in one page.
  struct Part {
    const Sequence* sequence;
    Side side;
    std::int64_t begin, end;
    NewRows added;
  };
  void add_parts(Sequence& sequence, std::int64_t layer, Side side, const NewRows& added, std::vector<Part>& parts);
  void make_pages(Sequence& sequence, std::int64_t layer, std::int64_t count);
  void code(const Part& part, std::int64_t layer);
  void keep(Sequence& sequence, std::int64_t layer, Side side, const NewRows& added);

  KvCacheSpec spec_;
  PageAllocator ids_;
  std::vector<std::vector<std::uint8_t>> pools_;  // [layers] pages
  std::map<std::int64_t, std::unique_ptr<Sequence>> sequences_;
};

}  // namespace oscar
