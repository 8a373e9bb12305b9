#include "attention/cpu/decode_attention_cpu.h"

#include <gtest/gtest.h>

#include "attention/decode_attention_reference.h"
#include "attention/random_cache.h"

namespace oscar {
namespace {

double relative_error(const std::vector<float>& x, const std::vector<double>& y) {
  double error = 0, power = 1e-30;
  for (std::size_t i = 0; i < y.size(); ++i) error += (x[i] - y[i]) * (x[i] - y[i]), power += y[i] * y[i];
  return std::sqrt(error / power);
}

void check(const CacheShape& shape, std::uint64_t seed) {
  RandomCache cache(shape, seed);
  std::vector<double> sums;
  const std::vector<double> expected = cache.dense(&sums);
  SCOPED_TRACE("d " + std::to_string(shape.head_dim) + ", group " + std::to_string(shape.group) + ", seed " +
               std::to_string(seed));
  decode_attention_reference(cache.params);
  EXPECT_LT(relative_error(cache.output, expected), 2e-7);
  EXPECT_LT(relative_error(cache.weight_sum, sums), 2e-7);
  std::fill(cache.output.begin(), cache.output.end(), NAN);
  std::fill(cache.weight_sum.begin(), cache.weight_sum.end(), NAN);
  decode_attention_cpu(cache.params, cache.pages(Side::kKey), cache.pages(Side::kValue));
  EXPECT_LT(relative_error(cache.output, expected), 5e-6);
  EXPECT_LT(relative_error(cache.weight_sum, sums), 5e-6);
}

TEST(DecodeAttention, EqualsDenseAttentionForEveryHeadSizeAndGroup) {
  std::uint64_t seed = 0;
  for (const int d : {64, 80, 96, 128, 256}) {
    for (int group = 1; group <= 16; ++group) {
      CacheShape shape{.batch = 2, .kv_heads = 2, .group = group, .head_dim = d, .body = 150};
      shape.key = uniform_code(d);
      shape.value = uniform_code(d, d / 2, ParamType::kBFloat16);
      check(shape, ++seed);
    }
  }
}

TEST(DecodeAttention, EqualsDenseAttentionForBothLayouts) {
  std::uint64_t seed = 100;
  for (const int d : {64, 96, 128}) {
    for (const auto& widths : {std::array<std::uint8_t, 4>{4, 2, 1, 1}, {4, 4, 4, 4}, {2, 1, 0, 0}, {0, 0, 0, 0}}) {
      CacheShape shape{.batch = 3, .kv_heads = 2, .group = 3, .head_dim = d, .body = 130};
      shape.key = band_code(d, widths);
      shape.value = uniform_code(d, 32);
      check(shape, ++seed);
      std::swap(shape.key, shape.value);
      check(shape, ++seed);
    }
  }
}

TEST(DecodeAttention, SinksCapsWindowsAndShifts) {
  std::uint64_t seed = 200;
  for (const float cap : {0.0f, 3.0f}) {
    for (const int window : {0, 1, 7, 90}) {
      for (const bool sinks : {false, true}) {
        CacheShape shape{.batch = 4, .kv_heads = 1, .group = 4, .head_dim = 64, .sink = 6, .body = 140, .recent = 12};
        shape.key = shape.value = uniform_code(64);
        shape.soft_cap = cap, shape.sliding_window = window, shape.sink_logits = sinks, shape.shift = true;
        check(shape, ++seed);
      }
    }
  }
}

TEST(DecodeAttention, Chunks) {
  std::uint64_t seed = 250;
  for (const int chunk : {1, 10, 64, 100, 1000}) {
    CacheShape shape{.batch = 4, .kv_heads = 1, .group = 4, .head_dim = 64, .sink = 6, .body = 140, .recent = 12};
    shape.key = shape.value = uniform_code(64);
    shape.chunk = chunk;
    check(shape, ++seed);
  }
}

TEST(DecodeAttention, EmptyTiers) {
  std::uint64_t seed = 300;
  for (const auto& [sink, body, recent] :
       {std::tuple{0, 0, 1}, {0, 65, 0}, {3, 0, 0}, {0, 64, 5}, {4, 128, 0}, {4, 0, 9}, {0, 1, 1}}) {
    CacheShape shape{.batch = 2,
                     .kv_heads = 2,
                     .group = 2,
                     .head_dim = 128,
                     .sink = sink,
                     .body = body,
                     .recent = recent,
                     .ragged = false};
    shape.key = shape.value = uniform_code(128);
    check(shape, ++seed);
  }
}

TEST(DecodeAttention, AddsLogitsOfPositions) {
  CacheShape shape{.batch = 2, .kv_heads = 2, .group = 3, .head_dim = 64, .body = 150};
  shape.key = shape.value = uniform_code(64);
  RandomCache cache(shape, 7);
  std::vector<float> turned(cache.query.size()), rope_phases(static_cast<std::size_t>((4 + 150 + 8 + 1) * 64));
  for (std::size_t i = 0; i < turned.size(); ++i) turned[i] = gaussian(1, i);
  for (std::size_t i = 0; i < rope_phases.size(); ++i) rope_phases[i] = gaussian(2, i);
  const PositionLogits positions{turned.data(), {rope_phases.data(), rope_phases.data()}, 64};
  decode_attention_cpu(cache.params, cache.pages(Side::kKey), cache.pages(Side::kValue));
  const std::vector<double> without(cache.output.begin(), cache.output.end());
  decode_attention_cpu(cache.params, cache.pages(Side::kKey), cache.pages(Side::kValue), &positions);
  EXPECT_GT(relative_error(cache.output, without), 0.05);
}

TEST(DecodeAttention, HugeLogitsDoNotOverflow) {
  CacheShape shape{.batch = 1, .kv_heads = 1, .group = 2, .head_dim = 64, .body = 100};
  shape.key = shape.value = uniform_code(64);
  RandomCache cache(shape, 1);
  for (float& q : cache.query) q *= 1000.0f;
  decode_attention_cpu(cache.params, cache.pages(Side::kKey), cache.pages(Side::kValue));
  for (const float o : cache.output) EXPECT_TRUE(std::isfinite(o));
}

}  // namespace
}  // namespace oscar
