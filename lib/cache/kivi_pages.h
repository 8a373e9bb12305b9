// Pages of KIVI (arXiv 2402.02750) and of methods with the same storage: codes of one (layer, side, KV head), with a
// scale and an offset per group, on either axis. Keys and values have separate pages. Plain loops, no LibTorch.
//
// A page holds 128 tokens. If a method divides tokens by their norm over all heads (OScaR), the page starts with the
// 128 FP32 norms. Then follow, for each KV head, codes and parameters. With b bits a byte has F = 8 / b fields, the
// lowest bits first. The n codes of a line take n / F bytes: field f of byte i is code i + f n / F, so one field of a
// run of bytes is a run of codes.
//   channel axis (keys of KIVI and OScaR): the 128 codes of channel 0, of channel 1, ...; then, for each channel and
//     group of g tokens, scale and offset as two FP16 values: d (128 b / 8 + 4 * 128 / g) bytes
//   token axis (their values): the d codes of token 0, of token 1, ...; then, for each token and group of g channels,
//     scale and offset: 128 (d b / 8 + 4 d / g) bytes
// xhat = (code scale + offset) norm, in the basis of the codes: the basis of the windows, or its Hadamard transform.
#pragma once

#include <cstdint>

#include "cache/cache_pages.h"
#include "registry/method_spec.h"

namespace oscar {

class KiviPages : public CachePages {
 public:
  // has_pages() must accept the side, and the side must fit the head size (require_fit()).
  KiviPages(const SideCode& side, int kv_heads, int head_dim);

  int tokens() const override { return kKiviPageTokens; }
  std::int64_t bytes() const override { return norm_bytes_ + kv_heads_ * head_bytes(); }
  std::int64_t head_bytes() const { return code_bytes_ + param_bytes_; }
  int least_tokens() const override { return channel_axis_ ? group_ : 1; }
  void write(std::uint8_t* page, int token, int count, const float* rows) const override;
  // The first `count` rows of a KV head, [count, d], in the basis of the codes.
  void read(const std::uint8_t* page, int head, int count, float* rows) const;
  void to_code_basis(float* rows, std::int64_t queries) const override;
  void dots(const std::uint8_t* page, int head, int count, const float* q, int queries, float* dots) const override;
  // Sums over codes are kept after sums over BF16 rows, whose basis differs.
  int sum_width() const override { return 2 * d_; }
  void add(const std::uint8_t* page, int head, int count, const float* weights, int queries,
           float* sums) const override;
  void finish(float* sums, int queries) const override;
  std::int64_t differing_rows(const std::uint8_t* pages, int head, std::int64_t tokens,
                              const float* rows) const override;
  void read_back(const std::uint8_t* page, int head, int count, float* rows) const override;

 private:
  const std::uint8_t* head_page(const std::uint8_t* page, int head) const {
    return page + norm_bytes_ + head * head_bytes();
  }
  float norm(const std::uint8_t* page, int token) const;
  void to_codes(float* rows, std::int64_t count, float* norms) const;
  void write_line(std::uint8_t* head_page, int line, int first, int count, const float* x) const;
  void read_codes(const std::uint8_t* head_page, int count, float* rows) const;
  void params(const std::uint8_t* head_page, int line, int index, float& scale, float& offset) const;
  int run_at(int at) const;
  std::uint8_t code_at(const std::uint8_t* head_page, int line, int i) const;
  bool stored_as(const std::uint8_t* head_page, int line, int index, const float* x) const;

  SideCode side_;
  bool channel_axis_;
  int bits_, kv_heads_, d_, line_, group_, lines_;  // line_: codes per line; lines_: lines per page
  std::int64_t order_;                              // of the Hadamard blocks of a head; 0: no rotation
  std::int64_t norm_bytes_, code_bytes_, param_bytes_;
};

}  // namespace oscar
