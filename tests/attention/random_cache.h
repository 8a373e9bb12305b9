// A random cache for tests of decode attention: three tiers of random lengths, pages in random order in a pool with
// holes, and the same rows decoded for a dense computation.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "attention/cpu/decode_attention_cpu.h"
#include "cache/row_pages.h"
#include "codec/rows.h"
#include "layout/float16.h"

namespace oscar {

struct CacheShape {
  int batch = 1, kv_heads = 1, group = 1, head_dim = 128;
  RowCode key, value;
  int sink = 4, body = 100, recent = 8;  // upper bounds; each sequence draws its own lengths from 0 to these
  bool ragged = true;
  float soft_cap = 0.0f;
  int sliding_window = 0, chunk = 0;
  bool sink_logits = false, shift = false;
};

class RandomCache {
 public:
  RandomCache(const CacheShape& shape, std::uint64_t seed) : shape_(shape), random_(seed) {
    const int d = shape.head_dim, kv = shape.kv_heads;
    params.page = page_layout(shape.key, shape.value);
    params.batch = shape.batch, params.kv_heads = kv, params.query_heads = kv * shape.group, params.head_dim = d;
    params.softmax_scale = 1.0f / std::sqrt(static_cast<float>(d));
    params.soft_cap = shape.soft_cap, params.sliding_window = shape.sliding_window;
    params.chunk = shape.chunk;
    query = normal(static_cast<std::size_t>(shape.batch * params.query_heads * d), 1.5f);
    for (auto* sigma : {&key_sigma, &value_sigma}) {
      for (int i = 0; i < kv * kBands; ++i)
        sigma->push_back(std::uniform_real_distribution<float>(0.5f, 2.0f)(random_));
    }
    lay_out_pages();
    sinks = normal(static_cast<std::size_t>(params.query_heads), 1.0f);
    shifts = normal(static_cast<std::size_t>(shape.batch * params.query_heads), 1.0f);
    output.resize(query.size()), weight_sum.resize(static_cast<std::size_t>(shape.batch * params.query_heads));
    params.query = query.data(), params.output = output.data(), params.weight_sum = weight_sum.data();
    params.key_sigma = key_sigma.data(), params.value_sigma = value_sigma.data();
    if (shape.sink_logits) params.sink_logits = sinks.data();
    if (shape.shift) params.logit_shift = shifts.data();
    params.sequences = views.data(), params.pages = pool.data();
  }

  // Textbook attention in double over the decoded rows: [B, Hq, d], and [B, Hq] sums of weights.
  std::vector<double> dense(std::vector<double>* sums) const {
    const int d = shape_.head_dim, heads = params.query_heads;
    std::vector<double> result(query.size(), 0.0);
    sums->assign(weight_sum.size(), 0.0);
    for (int b = 0; b < shape_.batch; ++b) {
      const auto& keys = keys_[static_cast<std::size_t>(b)];
      const auto& values = values_[static_cast<std::size_t>(b)];
      const int tokens = static_cast<int>(keys.size()) / (shape_.kv_heads * d);
      int first = shape_.sliding_window > 0 ? std::max(0, tokens - shape_.sliding_window) : 0;
      if (shape_.chunk > 0) first = std::max(tokens - 1, 0) / shape_.chunk * shape_.chunk;
      for (int h = 0; h < heads; ++h) {
        const auto head = static_cast<std::size_t>(b * heads + h);
        const float* q = query.data() + head * static_cast<std::size_t>(d);
        std::vector<double> logits;
        double total = shape_.sink_logits ? std::exp(double{sinks[static_cast<std::size_t>(h)]}) : 0.0;
        for (int j = first; j < tokens; ++j) {
          const float* k = keys.data() + (j * shape_.kv_heads + h / shape_.group) * d;
          double x = 0.0;
          for (int i = 0; i < d; ++i) x += double{q[i]} * k[i];
          x = x * params.softmax_scale + (shape_.shift ? shifts[head] : 0.0f);
          if (shape_.soft_cap > 0.0f) x = shape_.soft_cap * std::tanh(x / shape_.soft_cap);
          logits.push_back(std::exp(x));
          total += logits.back();
        }
        for (int j = first; j < tokens; ++j) {
          const double p = logits[static_cast<std::size_t>(j - first)] / total;
          const float* v = values.data() + (j * shape_.kv_heads + h / shape_.group) * d;
          for (int i = 0; i < d; ++i)
            result[head * static_cast<std::size_t>(d) + static_cast<std::size_t>(i)] += p * v[i];
          (*sums)[head] += p;
        }
      }
    }
    return result;
  }

  // Readers of the pages.
  RowPages pages(Side side) const {
    std::vector<RowCodec> codecs;
    for (int h = 0; h < shape_.kv_heads; ++h) codecs.push_back(codec(side, h));
    return RowPages(params.page, side, codecs);
  }

  TieredDecodeParams params;
  std::vector<float> query, sinks, shifts, output, weight_sum, key_sigma, value_sigma;
  std::vector<SequenceView> views;
  std::vector<std::uint8_t> pool;

 private:
  RowCodec codec(Side side, int head) const {
    RowCodec codec{.code = side == Side::kKey ? shape_.key : shape_.value, .side = side, .clip = 0.95f};
    const auto& sigma = side == Side::kKey ? key_sigma : value_sigma;
    std::copy_n(sigma.begin() + head * kBands, kBands, codec.sigma.begin());
    return codec;
  }
  std::vector<float> normal(std::size_t n, float size) {
    std::normal_distribution<float> gauss(0.0f, size);
    std::vector<float> out(n);
    for (float& v : out) v = gauss(random_);
    return out;
  }
  int draw(int most) { return shape_.ragged ? std::uniform_int_distribution<int>(0, most)(random_) : most; }

  void add_window(WindowTier& tier, int tokens, std::size_t b) {
    const int row = shape_.kv_heads * shape_.head_dim;
    tier.tokens = tokens, tier.capacity = tokens + draw(3), tier.capacity += tier.capacity == 0;
    tier.first = std::uniform_int_distribution<int>(0, tier.capacity - 1)(random_);
    for (const Side side : {Side::kKey, Side::kValue}) {
      auto& storage =
          windows_.emplace_back(static_cast<std::size_t>(tier.capacity * row), std::uint16_t{0x7fc0});  // NaN
      auto& dense = side == Side::kKey ? keys_[b] : values_[b];
      for (int t = 0; t < tokens; ++t) {
        const std::vector<float> values = normal(static_cast<std::size_t>(row), 1.0f);
        for (int i = 0; i < row; ++i) {
          const std::uint16_t bits = bfloat16_bits(values[static_cast<std::size_t>(i)]);
          storage[static_cast<std::size_t>((tier.first + t) % tier.capacity * row + i)] = bits;
          dense.push_back(bfloat16_value(bits));
        }
      }
      (side == Side::kKey ? tier.key : tier.value) = storage.data();
    }
  }

  void lay_out_pages() {
    const int d = shape_.head_dim, kv = shape_.kv_heads, bytes = params.page.bytes();
    const RowPages key_pages = this->pages(Side::kKey), value_pages = this->pages(Side::kValue);
    std::vector<int> body(static_cast<std::size_t>(shape_.batch));
    std::size_t pages = 0;
    for (int& n : body) n = draw(shape_.body), pages += static_cast<std::size_t>((n + kPageTokens - 1) / kPageTokens);
    std::vector<std::int32_t> ids(pages + 3);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i);
    std::shuffle(ids.begin(), ids.end(), random_);
    pool.assign(ids.size() * static_cast<std::size_t>(kv * bytes), 0xff);  // unused slots hold NaN parameters
    views.resize(body.size()), keys_.resize(body.size()), values_.resize(body.size());
    std::size_t next = 0;
    for (std::size_t b = 0; b < body.size(); ++b) {
      views[b] = {};
      add_window(views[b].sink, draw(shape_.sink), b);
      auto& table = tables_.emplace_back();
      for (int t = 0; t < body[b]; t += kPageTokens) table.push_back(ids[next++]);
      for (const Side side : {Side::kKey, Side::kValue}) {
        const std::vector<float> rows = normal(static_cast<std::size_t>(body[b] * kv * d), 1.0f);
        std::vector<float> decoded(rows.size());
        for (int h = 0; h < kv; ++h) {
          const RowCodec codec = this->codec(side, h);
          std::vector<std::uint8_t> codes(static_cast<std::size_t>(d)), row_params(kMaxHeadDim);
          for (int t = 0; t < body[b]; ++t) {
            const auto at = static_cast<std::size_t>((t * kv + h) * d);
            encode_rows(codec, rows.data() + at, 1, 0, codes.data(), row_params.data());
            decode_rows(codec, codes.data(), row_params.data(), 1, decoded.data() + at, 0);
            std::uint8_t* page = pool.data() + (table[static_cast<std::size_t>(t / kPageTokens)] * kv + h) * bytes;
            (side == Side::kKey ? key_pages : value_pages).put(page, t % kPageTokens, codes.data(), row_params.data());
          }
        }
        auto& dense = side == Side::kKey ? keys_[b] : values_[b];
        dense.insert(dense.end(), decoded.begin(), decoded.end());
      }
      views[b].body_tokens = body[b], views[b].page_table = table.data();
      // The current token is always cached: at least one BF16 token at the end unless the body ends the sequence.
      const int least = views[b].sink.tokens + body[b] == 0 ? 1 : 0;
      add_window(views[b].recent, std::max(least, draw(shape_.recent)), b);
    }
  }

  CacheShape shape_;
  std::mt19937_64 random_;
  std::vector<std::vector<std::uint16_t>> windows_;
  std::vector<std::vector<std::int32_t>> tables_;
  std::vector<std::vector<float>> keys_, values_;  // [B] of [tokens, Hkv, d]
};

}  // namespace oscar
