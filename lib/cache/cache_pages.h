// What the KV cache and its readers need of a page format: keys or values of one layer, all KV heads of a run of
// tokens, as plain bytes. Formats: RowPages (row_pages.h), KiviPages (kivi_pages.h). Plain loops, no LibTorch; const
// functions may run in several threads.
//
// Two bases: rows arrive as they stand in the BF16 windows; codes may be of rotated rows (to_code_basis()).
#pragma once

#include <cstdint>

#include "kernels/common/page_layout.h"

namespace oscar {

// Codes in lines (kivi_pages.h): of one channel or of one token.
struct LineFormat {
  std::int32_t bits = 0;           // 0: the pages have a SideLayout
  std::int32_t line = 0;           // codes of a line
  std::int32_t group = 0;          // codes that share scale and offset
  bool channel_axis = false;       // a line is a channel
  std::int32_t params_offset = 0;  // bytes from the start of a head's page
  bool integer_zero = false;       // zero points are whole numbers, of the range times `clip`
  float clip = 1.0f;
  std::int32_t hadamard_order = 0;  // of the blocks in which a token's rows are rotated before; 0: they are not
};

// What a kernel is told of a page: [norms of the tokens, FP32,] then the bytes of each KV head.
struct PageFormat {
  std::int32_t head_bytes = 0;   // of one KV head
  bool norms = false;            // each token is multiplied by its norm
  SideLayout rows;               // where lines.bits is 0
  LineFormat lines;              // elsewhere
  const float* sigma = nullptr;  // [Hkv, 4] deviations of blocks, as long as the pages live; lines: null
};

class CachePages {
 public:
  virtual ~CachePages() = default;

  virtual int tokens() const = 0;          // of a page
  virtual std::int64_t bytes() const = 0;  // of a page, all KV heads, and both sides where they share it
  virtual int least_tokens() const = 0;    // what is coded at once

  // Codes the tokens [token, token + count) of a page: least_tokens() of them, or any number where that is 1.
  // rows: [count, Hkv, d] finite floats in the basis of the windows.
  virtual void write(std::uint8_t* page, int token, int count, const float* rows) const = 0;

  // Whether a head's rows are coded apart from those of others, and for so long that each is worth a thread:
  // write_head() then codes one, rows [count, d]. Heads of a page may be written at the same time.
  virtual bool by_head() const { return false; }
  virtual void write_head(std::uint8_t* /*page*/, int /*head*/, int /*token*/, int /*count*/,
                          const float* /*rows*/) const {}

  // Rows of queries, [queries, d], into the basis of coded keys, in place. rotates(): whether that changes them.
  virtual bool rotates() const { return false; }
  virtual void to_code_basis(float* /*rows*/, std::int64_t /*queries*/) const {}

  // Keys: dots[h * tokens() + t] = <q_h, khat_t> for the first `count` tokens of a KV head. q: [queries, d], in the
  // basis of the codes.
  virtual void dots(const std::uint8_t* page, int head, int count, const float* q, int queries, float* dots) const = 0;

  // Values, summed in three steps into sums [queries, sum_width()], the first d of which are the result:
  // a reader adds BF16 rows to them; add() gathers sum_t weights[h * tokens() + t] vhat_t there or behind, where sums
  // over codes need it; finish() brings everything into the first d.
  virtual int sum_width() const = 0;
  virtual void add(const std::uint8_t* page, int head, int count, const float* weights, int queries,
                   float* sums) const = 0;
  virtual void finish(float* sums, int queries) const = 0;

  // For checks: how many of a KV head's rows of `tokens` tokens, in consecutive pages, are not stored as the encoder of
  // the method codes `rows`, [tokens, Hkv, d] in the basis of the windows. Reads the bytes by other code than dots()
  // and add().
  virtual std::int64_t differing_rows(const std::uint8_t* pages, int head, std::int64_t tokens,
                                      const float* rows) const = 0;

  // For checks: the first `count` rows of a KV head as readers get them, [count, d] in the basis of the windows.
  virtual void read_back(const std::uint8_t* page, int head, int count, float* rows) const = 0;

  virtual PageFormat format() const = 0;
};

}  // namespace oscar
