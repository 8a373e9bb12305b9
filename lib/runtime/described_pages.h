// Pages of methods of other papers: codes of one (layer, side, KV head) with a scale and an offset for each group, on
// either axis. Plain loops, no LibTorch.
//
// A page holds 128 tokens. With b bits a byte has F = 8 / b fields, the lowest bits first, and n codes that belong
// together take n / F bytes: field f of byte i is code i + f n / F, so one field of a run of bytes is a run of codes.
//   channel axis (keys of KIVI and OScaR): the 128 codes of channel 0, of channel 1, ...; then, for each channel and
//     group of g tokens, scale and offset as two FP16 values: d (128 b / 8 + 4 * 128 / g) bytes
//   token axis (their values): the d codes of token 0, of token 1, ...; then, for each token and group of g channels,
//     scale and offset: 128 (d b / 8 + 4 d / g) bytes
// xhat = code scale + offset, in the basis of the codes; OScaR multiplies it by the norm of the token, which is stored
// once for all heads (described_cache.h).
#pragma once

#include <cstdint>

#include "methods/description.h"

namespace oscar {

class DescribedPages {
 public:
  // The side must be one that has_pages() accepts.
  DescribedPages(const SideDescription& side, int head_dim);

  std::int64_t bytes() const { return code_bytes_ + param_bytes_; }  // of a page
  int least_tokens() const { return channel_axis_ ? group_ : 1; }    // what is coded at once

  // Codes tokens [token, token + count) of a page: least_tokens() of them, or any number where that is 1. x: rows of
  // head_dim floats, `stride` floats apart.
  void write(std::uint8_t* page, int token, int count, const float* x, std::int64_t stride) const;

  // The first `tokens` rows, [tokens, d].
  void read(const std::uint8_t* page, int tokens, float* x) const;

  // dots[h * 128 + t] = <q_h, xhat_t> for the first `tokens` rows; q: [queries, d].
  void dots(const std::uint8_t* page, int tokens, const float* q, int queries, float* dots) const;

  // The parameters and codes of one group as stored, for checks: group `index` of channel or token `line`.
  void stored_group(const std::uint8_t* page, int line, int index, std::uint8_t* codes, float* scale,
                    float* offset) const;
  int line_groups() const { return line_ / group_; }
  int group() const { return group_; }
  int line() const { return line_; }  // codes of a line
  int bits() const { return bits_; }
  bool channel_axis() const { return channel_axis_; }
  std::int64_t code_bytes() const { return code_bytes_; }  // the parameters follow

 private:
  void write_line(std::uint8_t* page, int line, int first, int count, const float* x) const;
  void params(const std::uint8_t* page, int line, int index, float& scale, float& offset) const;
  int run_at(int at) const;
  std::uint8_t code_at(const std::uint8_t* page, int line, int i) const;

  bool channel_axis_, integer_zero_;
  int bits_, d_, line_, group_, lines_;  // a line: the codes that belong together; lines of a page
  float clip_;
  std::int64_t code_bytes_, param_bytes_;
};

}  // namespace oscar
