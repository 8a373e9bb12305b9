#include "attention/cpu/decode_group.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cache/row_loops.h"

namespace oscar {
namespace {

std::size_t size(int n) { return static_cast<std::size_t>(n); }

// All query heads of one (sequence, KV head).
class GroupAttention {
 public:
  GroupAttention(const TieredDecodeParams& p, const CachePages& keys, const CachePages& values,
                 const PositionLogits* positions, std::int64_t batch, std::int64_t kv_head)
      : p_(p),
        keys_(keys),
        values_(values),
        positions_(positions),
        s_(p.sequences[batch]),
        kv_head_(static_cast<int>(kv_head)),
        group_(p.query_heads / p.kv_heads),
        d_(p.head_dim),
        tile_(keys.tokens()),
        width_(values.sum_width()),
        batch_(batch),
        first_head_(batch * p.query_heads + kv_head * group_),
        query_(p.query + first_head_ * d_) {
    largest_.assign(size(group_), -INFINITY), total_.assign(size(group_), 0.0f);
    sums_.assign(size(group_ * width_), 0.0f);
    logits_.resize(size(group_ * tile_)), weights_.resize(size(group_ * tile_));
    key_rows_.resize(size(tile_ * d_)), value_rows_.resize(size(tile_ * d_));
    for (int h = 0; p.sink_logits != nullptr && h < group_; ++h) {
      largest_[size(h)] = p.sink_logits[kv_head_ * group_ + h], total_[size(h)] = 1.0f;
    }
  }

  void run() {
    const std::int64_t sink = s_.sink.tokens, body = s_.body_tokens, tokens = sink + body + s_.recent.tokens;
    first_ = p_.first_token(tokens);
    window(s_.sink, 0);
    for (std::int64_t i = 0; i < body; i += tile_) {
      const int n = static_cast<int>(std::min<std::int64_t>(tile_, body - i));
      if (sink + i + n <= first_) continue;
      const std::uint8_t* page = p_.pages + s_.page_table[i / tile_] * keys_.bytes();
      keys_.dots(page, kv_head_, n, query_, group_, logits_.data());
      softmax(n, sink + i);
      values_.add(page, kv_head_, n, weights_.data(), group_, sums_.data());
    }
    window(s_.recent, sink + body);
    finish();
  }

 private:
  // Processes a BF16 tier whose first token has position `start`.
  void window(const WindowTier& tier, std::int64_t start) {
    for (std::int64_t i = 0; i < tier.tokens; i += tile_) {
      const int n = static_cast<int>(std::min<std::int64_t>(tile_, tier.tokens - i));
      if (start + i + n <= first_) continue;
      for (int t = 0; t < n; ++t) {
        const std::int64_t row = ((tier.first + i + t) % tier.capacity * p_.kv_heads + kv_head_) * d_;
        widen_row(tier.key + row, d_, key_rows_.data() + t * d_);
        widen_row(tier.value + row, d_, value_rows_.data() + t * d_);
      }
      for (int h = 0; h < group_; ++h) {
        row_dots(query_ + h * d_, key_rows_.data(), n, d_, d_, logits_.data() + h * tile_);
      }
      softmax(n, start + i);
      for (int h = 0; h < group_; ++h) {
        add_rows(weights_.data() + h * tile_, value_rows_.data(), n, d_, d_, sums_.data() + h * width_);
      }
    }
  }

  // From the dots of n tokens from position `start` on: weights_ = exp(logit - running maximum). Earlier sums are
  // rescaled if the maximum grows.
  void softmax(int n, std::int64_t start) {
    std::vector<float> dots(positions_ != nullptr ? size(n) : 0);
    for (int h = 0; h < group_; ++h) {
      float *logits = logits_.data() + h * tile_, *weights = weights_.data() + h * tile_;
      if (positions_ != nullptr) {
        const int width = positions_->width;
        const float* turned = positions_->query + (first_head_ + h) * width;
        const float* rows = positions_->rows[static_cast<std::size_t>(batch_)] + start * width;
        row_dots(turned, rows, n, width, width, dots.data());
        for (int t = 0; t < n; ++t) logits[t] += dots[size(t)];
      }
      const float shift = p_.logit_shift != nullptr ? p_.logit_shift[first_head_ + h] : 0.0f;
      float &held = largest_[size(h)], &total = total_[size(h)];
      float largest = held;
      for (int t = 0; t < n; ++t) {
        float x = p_.softmax_scale * logits[t] + shift;
        if (p_.soft_cap > 0.0f) x = p_.soft_cap * std::tanh(x / p_.soft_cap);
        logits[t] = start + t >= first_ ? x : -INFINITY;
        largest = std::max(largest, logits[t]);
      }
      if (largest > held) {
        const float factor = std::exp(held - largest);  // 0 at the first tile
        total *= factor;
        for (int i = 0; i < width_; ++i) sums_[size(h * width_ + i)] *= factor;
        held = largest;
      }
      for (int t = 0; t < n; ++t) total += weights[t] = std::exp(logits[t] - largest);
    }
  }

  void finish() {
    values_.finish(sums_.data(), group_);
    for (int h = 0; h < group_; ++h) {
      const float total = total_[size(h)], *o = sums_.data() + h * width_;
      float* out = p_.output + (first_head_ + h) * d_;
      for (int i = 0; i < d_; ++i) out[i] = total > 0.0f ? o[i] / total : 0.0f;
      if (p_.weight_sum == nullptr) continue;
      const float* logit = p_.sink_logits;
      const float sink = logit != nullptr ? std::exp(logit[kv_head_ * group_ + h] - largest_[size(h)]) : 0.0f;
      p_.weight_sum[first_head_ + h] = total > 0.0f ? (total - sink) / total : 0.0f;
    }
  }

  const TieredDecodeParams& p_;
  const CachePages &keys_, &values_;
  const PositionLogits* positions_;
  const SequenceView& s_;
  const int kv_head_, group_, d_, tile_, width_;
  const std::int64_t batch_, first_head_;                        // index into [B] and [B, Hq]
  const float* query_;                                           // [gqa_group, d]
  std::int64_t first_ = 0;                                       // first position inside the sliding window
  std::vector<float> largest_, total_, sums_;                    // [gqa_group] x 2, [gqa_group, width]
  std::vector<float> logits_, weights_, key_rows_, value_rows_;  // [gqa_group, tile] x 2, [tile, d] x 2
};

}  // namespace

void attend_group(const TieredDecodeParams& p, const CachePages& keys, const CachePages& values,
                  const PositionLogits* positions, std::int64_t batch, std::int64_t kv_head) {
  GroupAttention(p, keys, values, positions, batch, kv_head).run();
}

}  // namespace oscar
