// Two passes over a sequence whose keys and values have different windows and pages.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "attention/cpu/decode_group.h"
#include "cache/row_loops.h"
#include "layout/float16.h"

namespace oscar {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

float dot_bits(const float* q, const std::uint16_t* bits, std::int64_t n) {
  float lanes[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int l = 0; l < 8; ++l) lanes[l] += q[i + l] * bfloat16_value(bits[i + l]);
  }
  for (; i < n; ++i) lanes[0] += q[i] * bfloat16_value(bits[i]);
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

// All query heads of one (sequence, KV head).
struct Heads {
  const TieredDecodeParams& p;
  const std::int64_t kv_head, gqa_group, d, n;  // n: tokens
  const std::int64_t first_head;                // index into [B, Hq]
  const std::int64_t first;                     // first position inside the sliding window
  std::vector<float> weights;                   // [gqa_group, n] logits, then softmax weights

  // Calls row(position, bits of the KV head's row) for the BF16 tokens.
  template <class F>
  void for_each_row(const SideView& side, F&& row) const {
    const auto tier = [&](const RowTier& t, std::int64_t start) {
      for (std::int64_t i = std::max<std::int64_t>(0, first - start); i < t.tokens; ++i) {
        row(start + i, t.rows + ((t.first + i) % t.capacity * p.kv_heads + kv_head) * d);
      }
    };
    tier(side.sink, 0);
    tier(side.recent, side.sink.tokens + side.body);
  }

  // Calls page(position of its first token, tokens, bytes) for the pages.
  template <class F>
  void for_each_page(const SideView& side, F&& page) const {
    const std::int64_t step = side.pages->tokens();
    for (std::int64_t b = 0; b < side.body; b += step) {
      const std::int64_t count = std::min(step, side.body - b);
      if (side.sink.tokens + b + count > first) page(side.sink.tokens + b, count, side.page(b / step));
    }
  }

  void logits(const SideView& keys, const PositionLogits* positions);
  void softmax();
  void values(const SideView& values);
};

void Heads::logits(const SideView& keys, const PositionLogits* positions) {
  const int queries = static_cast<int>(gqa_group);
  std::vector<float> query(p.query + first_head * d, p.query + (first_head + gqa_group) * d);
  for (float& x : query) x *= p.softmax_scale;
  std::vector<float> coded = query, dots(index(gqa_group * keys.pages->tokens()));
  keys.pages->to_code_basis(coded.data(), gqa_group);
  for_each_row(keys, [&](std::int64_t j, const std::uint16_t* row) {
    for (std::int64_t h = 0; h < gqa_group; ++h) weights[index(h * n + j)] = dot_bits(query.data() + h * d, row, d);
  });
  for_each_page(keys, [&](std::int64_t j, std::int64_t count, const std::uint8_t* page) {
    keys.pages->dots(page, static_cast<int>(kv_head), static_cast<int>(count), coded.data(), queries, dots.data());
    for (std::int64_t h = 0; h < gqa_group; ++h) {
      std::copy_n(dots.begin() + h * keys.pages->tokens(), count, weights.begin() + h * n + j);
    }
  });
  for (std::int64_t h = 0; h < gqa_group; ++h) {
    const float shift = p.logit_shift != nullptr ? p.logit_shift[first_head + h] : 0.0f;
    for (std::int64_t j = first; j < n; ++j) {
      float& x = weights[index(h * n + j)];
      if (positions != nullptr) {
        float dot = 0;
        row_dots(positions->query + (first_head + h) * d, positions->rope_phases + j * d, 1, static_cast<int>(d), 0,
                 &dot);
        x += p.softmax_scale * dot;
      }
      if (p.logit_shift != nullptr) x += shift;
    }
  }
}

// The model's sink logits join the denominator.
void Heads::softmax() {
  for (std::int64_t h = 0; h < gqa_group; ++h) {
    float* row = weights.data() + h * n;
    const float* sink_logit = p.sink_logits != nullptr ? p.sink_logits + kv_head * gqa_group + h : nullptr;
    float largest = sink_logit != nullptr ? *sink_logit : kHidden;
    for (std::int64_t j = first; j < n; ++j) {
      if (p.soft_cap > 0.0f) row[j] = p.soft_cap * std::tanh(row[j] / p.soft_cap);
      largest = std::max(largest, row[j]);
    }
    const double sink = sink_logit != nullptr ? std::exp(*sink_logit - largest) : 0.0;
    double total = sink;
    for (std::int64_t j = first; j < n; ++j) total += row[j] = std::exp(row[j] - largest);
    for (std::int64_t j = 0; j < first; ++j) row[j] = 0.0f;
    for (std::int64_t j = first; j < n; ++j) row[j] = static_cast<float>(row[j] / total);
    if (p.weight_sum != nullptr) p.weight_sum[first_head + h] = static_cast<float>((total - sink) / total);
  }
}

void Heads::values(const SideView& values) {
  const CachePages& pages = *values.pages;
  const int width = pages.sum_width(), tokens = pages.tokens();
  std::vector<float> sums(index(gqa_group * width), 0.0f), wide(index(d)), part(index(gqa_group * tokens), 0.0f);
  for_each_page(values, [&](std::int64_t j, std::int64_t count, const std::uint8_t* page) {
    for (std::int64_t h = 0; h < gqa_group; ++h) {
      std::copy_n(weights.begin() + h * n + j, count, part.begin() + h * tokens);
    }
    pages.add(page, static_cast<int>(kv_head), static_cast<int>(count), part.data(), static_cast<int>(gqa_group),
              sums.data());
  });
  for_each_row(values, [&](std::int64_t j, const std::uint16_t* row) {
    const int size = static_cast<int>(d);
    widen_row(row, size, wide.data());
    for (std::int64_t h = 0; h < gqa_group; ++h) {
      add_rows(&weights[index(h * n + j)], wide.data(), 1, size, size, sums.data() + h * width);
    }
  });
  pages.finish(sums.data(), static_cast<int>(gqa_group));
  for (std::int64_t h = 0; h < gqa_group; ++h) {
    std::copy_n(sums.begin() + h * width, d, p.output + (first_head + h) * d);
  }
}

}  // namespace

void attend_sides(const TieredDecodeParams& p, const SideView& keys, const SideView& values,
                  const PositionLogits* positions, std::int64_t batch, std::int64_t kv_head) {
  const std::int64_t gqa_group = p.query_heads / p.kv_heads, n = keys.tokens();
  const std::int64_t first = p.first_token(n);
  Heads heads{p, kv_head, gqa_group, p.head_dim, n, batch * p.query_heads + kv_head * gqa_group, first, {}};
  heads.weights.assign(index(gqa_group * n), kHidden);
  heads.logits(keys, positions);
  heads.softmax();
  heads.values(values);
}

}  // namespace oscar
