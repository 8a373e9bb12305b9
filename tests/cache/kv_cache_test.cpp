// Where the tokens of a sequence are, with pages that store rows as they are.
#include "cache/kv_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "base/errors.h"
#include "layout/float16.h"

namespace oscar {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Pages of 4 tokens of one head with one channel, values behind keys.
class PlainPages : public CachePages {
 public:
  PlainPages(int slots, int first) : slots_(slots), first_(first) {}
  int tokens() const override { return 4; }
  std::int64_t bytes() const override { return 4 * slots_; }
  void write(std::uint8_t* page, int token, int count, const float* rows) const override {
    std::memcpy(page + 4 * (first_ + token), rows, 4 * static_cast<std::size_t>(count));
  }
  float at(const std::uint8_t* page, std::int64_t token) const {
    float x = 0;
    std::memcpy(&x, page + 4 * (first_ + token), 4);
    return x;
  }
  void dots(const std::uint8_t*, int, int, const float*, int, float*) const override { FAIL(); }
  int sum_width() const override { return 1; }
  void add(const std::uint8_t*, int, int, const float*, int, float*) const override { FAIL(); }
  void finish(float*, int) const override { FAIL(); }
  std::int64_t differing_rows(const std::uint8_t*, int, std::int64_t, const float*) const override { return 0; }
  void read_back(const std::uint8_t*, int, int, float*) const override { FAIL(); }

 private:
  int slots_, first_;
};

KvCacheSpec spec(const CacheWindows& windows) {
  KvCacheSpec s;
  s.kv_heads = s.head_dim = 1;
  s.sides[0] = {windows, {2, std::make_shared<PlainPages>(8, 0)}};
  s.sides[1] = {windows, {2, std::make_shared<PlainPages>(8, 4)}};
  return s;
}

void append(KvCache& cache, std::int64_t layer, std::int64_t id, const std::uint16_t* key, const std::uint16_t* value) {
  cache.append_rows(layer, {{id, key, value, 1}},
                    [](std::int64_t parts, const std::function<void(std::int64_t)>& code) {
                      for (std::int64_t i = 0; i < parts; ++i) code(i);
                    });
}

void append(KvCache& cache, std::int64_t layer, std::int64_t id, float key, float value) {
  const std::uint16_t k = bfloat16_bits(key), v = bfloat16_bits(value);
  append(cache, layer, id, &k, &v);
}

// Every token in order: of the sink, the pages, the recent window.
std::vector<float> all(const SideView& view) {
  std::vector<float> found;
  const auto tier = [&](const RowTier& t) {
    for (std::int64_t i = 0; i < t.tokens; ++i) found.push_back(bfloat16_value(t.rows[(t.first + i) % t.capacity]));
  };
  tier(view.sink);
  const auto& pages = dynamic_cast<const PlainPages&>(*view.pages);
  for (std::int64_t i = 0; i < view.body; ++i) found.push_back(pages.at(view.page(i / 4), i % 4));
  tier(view.recent);
  return found;
}

TEST(KvCache, LatentAttentionHoldsOneRowAndTheChannelsBesideIt) {
  const CacheWindows windows{2, 1, 2};
  KvCacheSpec one = spec(windows);
  one.rope_dim = 2;
  one.sides[0].pages.assign(2, std::make_shared<PlainPages>(4, 0));
  one.sides[1] = one.sides[0];
  KvCache cache(one), both(spec(windows));
  for (int t = 0; t < 12; ++t) {
    const auto value = static_cast<float>(t);
    const std::uint16_t key = bfloat16_bits(value);
    const std::array<std::uint16_t, 2> rope{bfloat16_bits(100 + value), bfloat16_bits(-value)};
    cache.append_rows(1, {{3, &key, nullptr, 1, rope.data()}},
                      [](std::int64_t parts, const std::function<void(std::int64_t)>& code) {
                        for (std::int64_t i = 0; i < parts; ++i) code(i);
                      });
    append(both, 1, 3, value, value);
  }
  const SideView key = cache.view(1, 3, Side::kKey), value = cache.view(1, 3, Side::kValue);
  EXPECT_THAT(all(key), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
  EXPECT_EQ(all(value), all(key));
  EXPECT_EQ(value.sink.rows, key.sink.rows);
  for (int t = 0; t < 12; ++t) {
    EXPECT_EQ(bfloat16_value(cache.rope(1, 3)[2 * t]), static_cast<float>(100 + t));
    EXPECT_EQ(bfloat16_value(cache.rope(1, 3)[2 * t + 1]), static_cast<float>(-t));
  }
  EXPECT_EQ(cache.pages_in_use(), both.pages_in_use());  // of half the bytes
  EXPECT_LT(cache.allocated_bytes(), both.allocated_bytes() + 2 * 16 * 2 * 2);
  cache.release(3);
  EXPECT_EQ(cache.pages_in_use(), 0);
}

TEST(KvCache, SharedPagesHaveOneTable) {
  KvCache cache(spec({1, 2, 1}));
  for (int t = 0; t < 9; ++t) {
    for (const std::int64_t layer : {0, 1})
      append(cache, layer, 1, static_cast<float>(10 * layer + t), -1.0f * static_cast<float>(t));
    append(cache, 0, 2, static_cast<float>(50 + t), static_cast<float>(70 + t));
  }
  EXPECT_EQ(cache.pages_in_use(), 4);  // 6 coded tokens of two sequences, all layers at the same places
  EXPECT_EQ(cache.view(0, 1, Side::kKey).table, cache.view(1, 1, Side::kValue).table);
  EXPECT_THAT(all(cache.view(1, 1, Side::kKey)), ElementsAre(10, 11, 12, 13, 14, 15, 16, 17, 18));
  EXPECT_THAT(all(cache.view(0, 1, Side::kValue)), ElementsAre(0, -1, -2, -3, -4, -5, -6, -7, -8));
  EXPECT_THAT(all(cache.view(0, 2, Side::kValue)), ElementsAre(70, 71, 72, 73, 74, 75, 76, 77, 78));
  cache.release(1), cache.release(99);
  EXPECT_EQ(cache.pages_in_use(), 2);
  EXPECT_EQ(cache.tokens(0, 1), 0);
  EXPECT_EQ(cache.tokens(0, 2), 9);
}

// In runs of any length, pages from the last to the first: what one by one gives.
TEST(KvCache, ManyRowsAtOnceAreThoseOneByOne) {
  const auto backwards = [](std::int64_t pages, const std::function<void(std::int64_t)>& code) {
    while (pages-- > 0) code(pages);
  };
  for (const CacheWindows& windows : {CacheWindows{1, 2, 1}, CacheWindows{2, 1, 2}}) {
    const KvCacheSpec s = spec(windows);
    KvCache single(s), runs(s);
    std::int64_t done = 0;
    for (const std::int64_t count : {1, 2, 17, 3, 0, 1, 30}) {
      std::vector<std::uint16_t> k, v;
      for (std::int64_t i = 0; i < count; ++i) {
        k.push_back(bfloat16_bits(static_cast<float>(done + i)));
        v.push_back(bfloat16_bits(static_cast<float>(100 + done + i)));
      }
      for (const std::int64_t layer : {0, 1}) {
        for (std::size_t i = 0; i < k.size(); ++i) append(single, layer, 7, &k[i], &v[i]);
        runs.append_rows(layer, {{7, k.data(), v.data(), count}}, backwards);
        for (const Side side : {Side::kKey, Side::kValue}) {
          EXPECT_EQ(all(runs.view(layer, 7, side)), all(single.view(layer, 7, side)));
          EXPECT_EQ(runs.view(layer, 7, side).body, single.view(layer, 7, side).body);
        }
      }
      done += count;
    }
    EXPECT_EQ(runs.pages_in_use(), single.pages_in_use());
    EXPECT_EQ(runs.allocated_bytes(), single.allocated_bytes());
  }
}

TEST(KvCache, AllInSinkCodesNothing) {
  KvCache cache(spec(all_in_sink()));
  for (int t = 0; t < 40; ++t) append(cache, 0, 0, static_cast<float>(t), 0.0f);
  const SideView view = cache.view(0, 0, Side::kKey);
  EXPECT_EQ(view.sink.tokens, 40);
  EXPECT_EQ(view.body + view.recent.tokens + cache.pages_in_use(), 0);
  EXPECT_EQ(all(view)[39], 39.0f);
}

TEST(KvCache, NamesTheTokenThatCannotBeCoded) {
  KvCache cache(spec({1, 1, 1}));
  append(cache, 1, 0, NAN, NAN);  // in the sink: never coded
  append(cache, 1, 0, 1.0f, INFINITY);
  try {
    append(cache, 1, 0, 1.0f, 1.0f);
    FAIL();
  } catch (const NumericalError& e) {
    EXPECT_THAT(e.what(), HasSubstr("layer 1, KV head 0, value of token 1: holds an infinity in channel 0"));
  }
}

}  // namespace
}  // namespace oscar
