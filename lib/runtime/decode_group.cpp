#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "codec/float16.h"
#include "codec/row_math.h"
#include "runtime/decode_group.h"

namespace oscar {
namespace {

constexpr int kLanes = 16;
typedef float Vector __attribute__((vector_size(kLanes * sizeof(float))));

// <x, y> with 16 running sums.
OSCAR_INLINE float dot(const float* x, const float* y, int n) {
  Vector sum = {}, a, b;
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    std::memcpy(&a, x + i, sizeof(a));
    std::memcpy(&b, y + i, sizeof(b));
    sum += a * b;
  }
  float lanes[kLanes], total = 0.0f;
  std::memcpy(lanes, &sum, sizeof(lanes));
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) lanes[l] += lanes[l + width];
  }
  for (total = lanes[0]; i < n; ++i) total += x[i] * y[i];
  return total;
}

// dots[t] = <q, rows[t]> over n channels; rows are d floats apart.
OSCAR_VECTOR_CLONES void dots_of(const float* q, const float* rows, int tokens, int n, int d, float* dots) {
  for (int t = 0; t < tokens; ++t) dots[t] = dot(q, rows + t * d, n);
}

// output[n] += sum over t of weight[t] rows[t].
OSCAR_VECTOR_CLONES void add_rows(const float* weight, const float* rows, int tokens, int n, int d, float* output) {
  for (int t = 0; t < tokens; ++t) {
    const float w = weight[t];
    const float* row = rows + t * d;
    for (int i = 0; i < n; ++i) output[i] += w * row[i];
  }
}

OSCAR_VECTOR_CLONES void widen(const std::uint16_t* bits, int n, float* values) {
  for (int i = 0; i < n; ++i) values[i] = bfloat16_value(bits[i]);
}

// Up to 64 tokens of one tier: xhat = scale (level - zero) by segment.
struct Tile {
  int tokens = 0;
  std::vector<float> levels, scale, zero;  // [64, d], [segments, 64] x 2
};

// All query heads of one (sequence, KV head).
class GroupAttention {
 public:
  GroupAttention(const DecodeAttentionParams& p, const SidePages& keys, const SidePages& values,
                 const PositionLogits* positions, std::int64_t batch, std::int64_t kv_head)
      : p_(p),
        keys_(keys),
        values_(values),
        positions_(positions),
        s_(p.sequences[batch]),
        batch_(batch),
        kv_head_(kv_head),
        group_(p.query_heads / p.kv_heads),
        d_(p.head_dim) {
    const auto d = static_cast<std::size_t>(d_), g = static_cast<std::size_t>(group_);
    query_ = p.query + (batch * p.query_heads + kv_head * group_) * d_;
    output_.assign(g * d, 0.0f), zeros_.assign(g * values.segments().size(), 0.0f);
    largest_.assign(g, -INFINITY), total_.assign(g, 0.0f), weights_.resize(g * kPageTokens);
    const std::size_t segments = std::max({keys.segments().size(), values.segments().size(), std::size_t{1}});
    for (Tile* tile : {&key_tile_, &value_tile_}) {
      tile->levels.resize(kPageTokens * d);
      tile->scale.resize(segments * kPageTokens), tile->zero.resize(segments * kPageTokens);
    }
    for (std::size_t h = 0; p.sink_logits != nullptr && h < g; ++h) {
      largest_[h] = p.sink_logits[static_cast<std::size_t>(kv_head * group_) + h], total_[h] = 1.0f;
    }
  }

  void run() {
    const std::int64_t sink = s_.sink.tokens, body = s_.body_tokens, tokens = sink + body + s_.recent.tokens;
    first_ = p_.sliding_window > 0 ? std::max<std::int64_t>(0, tokens - p_.sliding_window) : 0;
    window(s_.sink, 0);
    for (std::int64_t i = 0; i < body; i += kPageTokens) {
      const int n = static_cast<int>(std::min<std::int64_t>(kPageTokens, body - i));
      if (sink + i + n <= first_) continue;
      const std::uint8_t* page =
          p_.pages + (std::int64_t{s_.page_table[i / kPageTokens]} * p_.kv_heads + kv_head_) * p_.page.bytes();
      const float* sigma = p_.key_sigma != nullptr ? p_.key_sigma + kv_head_ * 4 : nullptr;
      keys_.read_levels(page, n, sigma, key_tile_.levels.data(), key_tile_.scale.data(), key_tile_.zero.data());
      sigma = p_.value_sigma != nullptr ? p_.value_sigma + kv_head_ * 4 : nullptr;
      values_.read_levels(page, n, sigma, value_tile_.levels.data(), value_tile_.scale.data(), value_tile_.zero.data());
      tile(n, sink + i, keys_.segments(), values_.segments(), true);
    }
    window(s_.recent, sink + body);
    finish();
  }

 private:
  using Segments = std::vector<SidePages::Segment>;

  // A BF16 tier, whose first token has position `start`.
  void window(const WindowTier& tier, std::int64_t start) {
    const Segments whole{{0, d_}};
    for (std::int64_t i = 0; i < tier.tokens; i += kPageTokens) {
      const int n = static_cast<int>(std::min<std::int64_t>(kPageTokens, tier.tokens - i));
      if (start + i + n <= first_) continue;
      for (int t = 0; t < n; ++t) {
        const std::int64_t row = ((tier.first + i + t) % tier.capacity * p_.kv_heads + kv_head_) * d_;
        widen(tier.key + row, d_, key_tile_.levels.data() + t * d_);
        widen(tier.value + row, d_, value_tile_.levels.data() + t * d_);
      }
      tile(n, start + i, whole, whole, false);
    }
  }

  void tile(int n, std::int64_t start, const Segments& key_segments, const Segments& value_segments, bool scaled) {
    float dots[kPageTokens], logits[kPageTokens], segment_weights[kPageTokens];
    for (int h = 0; h < group_; ++h) {
      const float* q = query_ + h * d_;
      std::fill_n(logits, n, 0.0f);
      for (std::size_t g = 0; g < key_segments.size(); ++g) {
        const auto [channel, channels] = key_segments[g];
        dots_of(q + channel, key_tile_.levels.data() + channel, n, channels, d_, dots);
        if (!scaled) {
          std::copy_n(dots, n, logits);
          continue;
        }
        float sum = 0.0f;
        for (int i = 0; i < channels; ++i) sum += q[channel + i];
        const float *s = key_tile_.scale.data() + g * kPageTokens, *z = key_tile_.zero.data() + g * kPageTokens;
        for (int t = 0; t < n; ++t) logits[t] += s[t] * (dots[t] - z[t] * sum);
      }
      if (positions_ != nullptr) {
        const float* turned = positions_->query + (batch_ * p_.query_heads + kv_head_ * group_ + h) * d_;
        dots_of(turned, positions_->phases + start * d_, n, d_, d_, dots);
        for (int t = 0; t < n; ++t) logits[t] += dots[t];
      }
      softmax(h, n, start, logits);
      const float* p = weights_.data() + h * kPageTokens;
      for (std::size_t g = 0; g < value_segments.size(); ++g) {
        const auto [channel, channels] = value_segments[g];
        const float *s = value_tile_.scale.data() + g * kPageTokens, *z = value_tile_.zero.data() + g * kPageTokens;
        for (int t = 0; t < n; ++t) segment_weights[t] = scaled ? p[t] * s[t] : p[t];
        if (scaled) {  // a window has one segment, also where the body stores no value channels and zeros_ is empty
          float& zeros = zeros_[static_cast<std::size_t>(h) * values_.segments().size() + g];
          for (int t = 0; t < n; ++t) zeros += segment_weights[t] * z[t];
        }
        add_rows(segment_weights, value_tile_.levels.data() + channel, n, channels, d_,
                 output_.data() + h * d_ + channel);
      }
    }
  }

  // weights_[h] = exp(logit - running maximum); earlier sums are rescaled when the maximum grows.
  void softmax(int h, int n, std::int64_t start, float* logits) {
    const auto at = static_cast<std::size_t>(h);
    const std::int64_t head = batch_ * p_.query_heads + kv_head_ * group_ + h;
    const float shift = p_.logit_shift != nullptr ? p_.logit_shift[head] : 0.0f;
    float largest = largest_[at];
    for (int t = 0; t < n; ++t) {
      float x = p_.softmax_scale * logits[t] + shift;
      if (p_.soft_cap > 0.0f) x = p_.soft_cap * std::tanh(x / p_.soft_cap);
      logits[t] = start + t >= first_ ? x : -INFINITY;
      largest = std::max(largest, logits[t]);
    }
    if (largest > largest_[at]) {
      const float factor = std::exp(largest_[at] - largest);  // 0 at the first tile
      total_[at] *= factor;
      for (int i = 0; i < d_; ++i) output_[at * static_cast<std::size_t>(d_) + static_cast<std::size_t>(i)] *= factor;
      const std::size_t segments = values_.segments().size();
      for (std::size_t g = 0; g < segments; ++g) zeros_[at * segments + g] *= factor;
      largest_[at] = largest;
    }
    float* p = weights_.data() + h * kPageTokens;
    for (int t = 0; t < n; ++t) total_[at] += p[t] = std::exp(logits[t] - largest);
  }

  void finish() {
    float* out = p_.output + (batch_ * p_.query_heads + kv_head_ * group_) * d_;
    for (int h = 0; h < group_; ++h) {
      const auto at = static_cast<std::size_t>(h);
      float* o = output_.data() + h * d_;
      for (std::size_t g = 0; g < values_.segments().size(); ++g) {
        const auto [channel, channels] = values_.segments()[g];
        for (int i = channel; i < channel + channels; ++i) o[i] -= zeros_[at * values_.segments().size() + g];
      }
      for (int i = 0; i < d_; ++i) out[h * d_ + i] = total_[at] > 0.0f ? o[i] / total_[at] : 0.0f;
      if (p_.weight_sum == nullptr) continue;
      const std::int64_t head = kv_head_ * group_ + h;
      const float sink = p_.sink_logits != nullptr ? std::exp(p_.sink_logits[head] - largest_[at]) : 0.0f;
      p_.weight_sum[batch_ * p_.query_heads + head] = total_[at] > 0.0f ? (total_[at] - sink) / total_[at] : 0.0f;
    }
  }

  const DecodeAttentionParams& p_;
  const SidePages &keys_, &values_;
  const PositionLogits* positions_;
  const SequenceView& s_;
  const std::int64_t batch_, kv_head_;
  const int group_, d_;
  const float* query_ = nullptr;  // [group, d]
  std::int64_t first_ = 0;        // first position inside the sliding window
  Tile key_tile_, value_tile_;
  std::vector<float> output_, zeros_, largest_, total_,
      weights_;  // [group, d], [group, segments], [group] x 2, [group, 64]
};

}  // namespace

void attend_group(const DecodeAttentionParams& p, const SidePages& keys, const SidePages& values,
                  const PositionLogits* positions, std::int64_t batch, std::int64_t kv_head) {
  GroupAttention(p, keys, values, positions, batch, kv_head).run();
}

}  // namespace oscar
