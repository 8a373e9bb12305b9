// Pages with the codes of codec.h: one row (one token of one KV head) after the other, keys and values in one page of
// 64 tokens (page_layout.h).
#pragma once

#include <cstdint>
#include <vector>

#include "cache/cache_pages.h"
#include "codec/codec.h"
#include "layout/row_code.h"

namespace oscar {

// The keys or the values in pages of one layout.
class RowPages : public CachePages {
 public:
  // codecs: [Hkv], of the layout. Without them, only get(), put() and read_levels() may be called. InputError for
  // code that does not exist.
  RowPages(const PageLayout& page, Side side, std::vector<RowCodec> codecs = {});

  // Writes or reads one row of one KV head, whose bytes begin at head_page. codes: [d], params: [param_bytes of the
  // row] as written by encode_rows. Token 0..63.
  void put(std::uint8_t* head_page, int token, const std::uint8_t* codes, const std::uint8_t* params) const;
  void get(const std::uint8_t* head_page, int token, std::uint8_t* codes, std::uint8_t* params) const;

  // The first `count` rows as xhat = scale (level - zero). levels: [count, d] (0 in channels of width 0); scale, zero:
  // [scale_runs(), 64]. sigma: [4], read only for blocks.
  void read_levels(const std::uint8_t* head_page, int count, const float* sigma, float* levels, float* scale,
                   float* zero) const;

  int tokens() const override { return kPageTokens; }
  std::int64_t bytes() const override { return std::ssize(codecs_) * page_.bytes(); }
  void write(std::uint8_t* page, int token, int count, const float* rows) const override;
  void dots(const std::uint8_t* page, int head, int count, const float* q, int queries, float* dots) const override;
  // Sums over codes and over BF16 rows share d columns. After them are the zero points, one float per run of channels
  // that share a scale.
  int sum_width() const override { return layout_.head_dim + static_cast<int>(runs_.size()); }
  void add(const std::uint8_t* page, int head, int count, const float* weights, int queries,
           float* sums) const override;
  void finish(float* sums, int queries) const override;
  std::int64_t differing_rows(const std::uint8_t* pages, int head, std::int64_t tokens,
                              const float* rows) const override;
  void read_back(const std::uint8_t* page, int head, int count, float* rows) const override;

 private:
  void write_row(std::uint8_t* head_page, const RowCodec& codec, int token, const float* row) const;
  struct Levels;
  Levels levels_of(const std::uint8_t* page, int head, int count) const;

  PageLayout page_;
  SideLayout layout_;
  Side side_;
  std::vector<RowCodec> codecs_;  // [Hkv]
  RowEncoder encode_ = nullptr;   // for the layout; null without codecs
  std::vector<float> sigma_;      // [Hkv, 4]
  std::vector<ScaleRun> runs_;
  // The first channel that a run adds to: its own, or 0 for the run that refines the first block.
  int target_of(std::size_t run) const { return refined_ && run + 1 == runs_.size() ? 0 : runs_[run].first_channel; }
  bool refined_ = false;
  // Per plane: position of each code in units of its width, [tokens, channels].
  std::vector<std::vector<std::uint16_t>> places_;
};

}  // namespace oscar
