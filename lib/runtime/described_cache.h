// The paged cache of a method of another paper on the CPU, and attention over it. Keys and values have windows and
// pages of their own (described_pages.h): the first tokens and the ones that have not left yet are BF16 rows in the
// model's own basis, the others codes in pages of 128 tokens. Where a method divides tokens by their norm, a page
// starts with the 128 FP32 norms, which all heads share; the pages of the heads follow. Plain loops, no LibTorch.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "methods/description.h"
#include "runtime/described_pages.h"
#include "runtime/paged_cache.h"

namespace oscar {

// One query token over one sequence of the cache.
struct DescribedQuery {
  const float* query = nullptr;  // [Hq, d], in the model's basis
  std::int64_t query_heads = 0;
  float softmax_scale = 1.0f, soft_cap = 0.0f;  // soft_cap 0: none
  std::int64_t sliding_window = 0;              // 0: none
  const float* sink_logits = nullptr;           // null, or [Hq]
  float* output = nullptr;                      // [Hq, d]
};

// One side of a layer of a sequence as it is stored, for a reader that copies it.
struct DescribedSideView {
  const std::uint8_t* pool = nullptr;  // pages of the layer, those of other sequences included
  std::int64_t pool_pages = 0, page_bytes = 0, norm_bytes = 0;
  const std::vector<std::int32_t>* pages = nullptr;                  // of the sequence
  const std::vector<std::uint16_t>*sink = nullptr, *ring = nullptr;  // [rows so far, Hkv, d] BF16
  std::int64_t tokens = 0, body = 0;                                 // all, and coded ones behind the sink
  std::int64_t sink_rows = 0, ring_rows = 0;  // capacity; token i behind the sink is in row i mod that
};

class DescribedCache {
 public:
  // std::invalid_argument for a method without pages (has_pages).
  DescribedCache(const MethodDescription& method, std::int64_t layers, std::int64_t kv_heads, std::int64_t head_dim);
  ~DescribedCache();

  // The next token of a sequence (a new one when the id is not known). key, value: [Hkv, d] BF16 bits. NumericalError,
  // naming the place, when a token to be coded is not finite.
  void append(std::int64_t layer, std::int64_t sequence, const std::uint16_t* key, const std::uint16_t* value);
  void release(std::int64_t sequence);
  std::int64_t tokens(std::int64_t layer, std::int64_t sequence) const;  // 0 for an unknown id

  // Attention of the query heads that read one KV head. For several heads and sequences at once by threads.
  void attend(std::int64_t layer, std::int64_t sequence, std::int64_t kv_head, const DescribedQuery& query) const;

  // For checks: the pages of one side, the page that holds a coded token of one head, and its norm (1: none stored).
  const DescribedPages& pages(Side side) const;
  const std::uint8_t* page(std::int64_t layer, std::int64_t sequence, Side side, std::int64_t body_token,
                           std::int64_t kv_head) const;
  float norm(std::int64_t layer, std::int64_t sequence, Side side, std::int64_t body_token) const;

  DescribedSideView view(std::int64_t layer, std::int64_t sequence, Side side) const;  // of a known id

  std::uint64_t allocated_bytes() const;  // memory held by pages and windows

 private:
  struct SideStore;
  struct SideState;
  struct Sequence;

  std::int64_t layers_, kv_heads_, head_dim_;
  std::unique_ptr<SideStore> stores_[2];  // keys, values
  std::map<std::int64_t, std::unique_ptr<Sequence>> sequences_;
};

}  // namespace oscar
