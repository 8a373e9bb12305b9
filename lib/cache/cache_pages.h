// The page format as the KV cache and its readers see it. A page holds keys or values of one layer, all KV heads of a
// run of tokens, as plain bytes. The format is RowPages (row_pages.h). Plain loops, no LibTorch;
// const functions may run in several threads.
#pragma once

#include <cstdint>
#include <vector>

namespace oscar {

class CachePages {
 public:
  virtual ~CachePages() = default;

  virtual int tokens() const = 0;          // tokens per page
  virtual std::int64_t bytes() const = 0;  // bytes of a page: all KV heads, and both sides if they share it

  // Codes the tokens [token, token + count) of a page: any number of them. rows: [count, Hkv, d] finite floats in the
  // basis of the windows.
  virtual void write(std::uint8_t* page, int token, int count, const float* rows) const = 0;

  // Keys: dots[h * tokens() + t] = <q_h, khat_t> for the first `count` tokens of a KV head. q: [queries, d], in the
  // basis of the codes.
  virtual void dots(const std::uint8_t* page, int head, int count, const float* q, int queries, float* dots) const = 0;

  // Values, summed in three steps into sums [queries, sum_width()], whose first d columns are the result. A reader adds
  // BF16 rows to them. add() adds sum_t weights[h * tokens() + t] vhat_t there, or after them if sums over codes need
  // it. finish() brings everything into the first d columns.
  virtual int sum_width() const = 0;
  virtual void add(const std::uint8_t* page, int head, int count, const float* weights, int queries,
                   float* sums) const = 0;
  virtual void finish(float* sums, int queries) const = 0;

  // For checks: compares rows of `tokens` tokens of a KV head, in consecutive pages, with the encoder's codes of
  // `rows`. Returns the number of rows that differ. rows: [tokens, Hkv, d] in the basis of the windows. It reads the
  // bytes by other code than dots() and add().
  virtual std::int64_t differing_rows(const std::uint8_t* pages, int head, std::int64_t tokens,
                                      const float* rows) const = 0;

  // For checks: the first `count` rows of a KV head as readers decode them, [count, d] in the basis of the windows.
  virtual void read_back(const std::uint8_t* page, int head, int count, float* rows) const = 0;
};

// Hands out the numbers of pages in a pool, from 0 on; released ids are reused first.
class PageAllocator {
 public:
  std::int32_t allocate();          // EnvironmentError if all 2^31 - 1 are in use
  void release(std::int32_t page);  // std::invalid_argument for a page that is not in use
  std::int64_t pages_in_use() const { return in_use_; }
  std::int64_t pages_ever() const { return static_cast<std::int64_t>(used_.size()); }  // all ids are below this

 private:
  std::vector<std::int32_t> free_;
  std::vector<bool> used_;
  std::int64_t in_use_ = 0;
};

}  // namespace oscar
