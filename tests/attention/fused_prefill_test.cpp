// Attention in tiles with a running softmax against the same written out in blocks, and against ATen's.
#include "attention/fast_prefill.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

namespace oscar {
namespace {

struct Shape {
  std::int64_t tokens, kv_heads, group, key_d, value_d;
};

struct Case {
  AttentionInput input;
  at::Tensor q;
  CachedRows keys, values;

  Case(const Shape& shape, const CacheWindows& windows, double size = 1.0) {
    at::manual_seed(11);
    q = at::randn({shape.tokens, shape.kv_heads * shape.group, shape.key_d}).mul_(size);
    const auto rows = [&](std::int64_t d) { return at::randn({shape.kv_heads, shape.tokens, d}); };
    keys = {rows(shape.key_d), rows(shape.key_d), windows};
    values = {rows(shape.value_d), rows(shape.value_d), windows};
    input.q = q;
    input.scale = 1.0 / std::sqrt(static_cast<double>(shape.key_d));
  }
};

at::Tensor written_out(const Case& c, const CachedRows& keys, const CachedRows& values) {
  return attend_cached(c.input, c.q, keys, values, {}, {});
}

void expect_close(const at::Tensor& a, const at::Tensor& b, const std::string& what) {
  ASSERT_EQ(a.sizes(), b.sizes()) << what;
  EXPECT_LT((a - b).abs().max().item<double>(), 1e-5) << what;
}

TEST(FusedPrefill, EqualsBlocksWrittenOut) {
  for (const Shape& shape : {Shape{700, 2, 3, 64, 64}, Shape{290, 1, 1, 40, 24}, Shape{65, 2, 7, 16, 32},
                             Shape{33, 3, 2, 6, 6}, Shape{1, 1, 2, 8, 8}}) {
    for (const CacheWindows& windows : {CacheWindows{64, 256, 1}, CacheWindows{5, 11, 1}, CacheWindows{4, 20, 8}}) {
      const Case c(shape, windows);
      const CachedRows keys{c.keys.plain, {}, {}}, values{c.values.plain, {}, {}};
      const std::string what = std::to_string(shape.tokens) + " tokens, sink " + std::to_string(windows.sink);
      expect_close(attend_fused(c.input, c.q, {}, keys, values), written_out(c, keys, values), what + ", plain");
      expect_close(attend_fused(c.input, c.q, {}, c.keys, values), written_out(c, c.keys, values), what + ", keys");
      expect_close(attend_fused(c.input, c.q, {}, keys, c.values), written_out(c, keys, c.values), what + ", values");
      expect_close(attend_fused(c.input, c.q, {}, c.keys, c.values), written_out(c, c.keys, c.values), what + ", both");
    }
  }
}

TEST(FusedPrefill, WindowsAndChunksOfTheLayer) {
  Case c({600, 2, 2, 32, 32}, {8, 24, 1});
  for (const std::int64_t span : {1, 50, 300}) {
    c.input.sliding_window = span;
    expect_close(attend_fused(c.input, c.q, {}, c.keys, c.values), written_out(c, c.keys, c.values), "window");
    c.input.sliding_window = 0, c.input.chunk = span;
    expect_close(attend_fused(c.input, c.q, {}, c.keys, c.values), written_out(c, c.keys, c.values), "chunk");
    c.input.chunk = 0;
  }
}

TEST(FusedPrefill, SomeQueriesAreThoseOfAll) {
  const Case c({500, 2, 3, 32, 48}, {8, 24, 1});
  const at::Tensor all = attend_fused(c.input, c.q, {}, c.keys, c.values);
  for (const at::Tensor& asked :
       {at::arange(40, 499, 3), at::tensor({499}, at::kLong), at::tensor({0, 7}, at::kLong)}) {
    const at::Tensor some = attend_fused(c.input, c.q.index_select(0, asked), asked, c.keys, c.values);
    expect_close(some, all.index_select(0, asked), "asked");
  }
}

// Coded values of several versions beside the sums over plain ones.
TEST(FusedPrefill, SumsOfPlainAndCodedValuesApart) {
  for (const std::int64_t d : {32, 24}) {
    Case c({500, 2, 2, 32, d}, {8, 24, 1});
    const at::Tensor other = at::randn_like(c.values.coded);
    const CachedRows both{c.values.plain, at::cat({c.values.coded, other}, 2), c.values.windows};
    const at::Tensor apart = attend_fused_apart(c.input, c.q, {}, c.keys, both);
    ASSERT_EQ(apart.size(2), 3 * d);
    const at::Tensor plain = apart.narrow(2, 0, d);
    expect_close(plain + apart.narrow(2, d, d), written_out(c, c.keys, c.values), "first");
    const CachedRows second{c.values.plain, other, c.values.windows};
    expect_close(plain + apart.narrow(2, 2 * d, d), written_out(c, c.keys, second), "second");
  }
}

// Logits of hundreds: weights far below the smallest float, and a maximum that grows from tile to tile.
TEST(FusedPrefill, SharpDistributions) {
  const Case c({600, 1, 2, 32, 32}, {8, 24, 1}, 80.0);
  const at::Tensor out = attend_fused(c.input, c.q, {}, c.keys, c.values);
  EXPECT_LT((out - written_out(c, c.keys, c.values)).abs().max().item<double>(), 1e-3);
}

TEST(FusedPrefill, NaNReachesTheQueriesThatSeeIt) {
  Case c({300, 1, 1, 16, 16}, {8, 24, 1});
  c.keys.plain[0][290][3] = std::nan("");
  const at::Tensor out = attend_fused(c.input, c.q, {}, c.keys, c.values).isnan().flatten(1).any(1);
  EXPECT_FALSE(out.narrow(0, 0, 290).any().item<bool>());
  EXPECT_TRUE(out.narrow(0, 290, 10).all().item<bool>());
}

TEST(FusedPrefill, PackedSequencesEqualFullAttention) {
  at::manual_seed(12);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const SequenceBatch batch{{0, 1, 2}, {70, 1, 200}, {0, 0, 0}};
    AttentionInput input;
    input.batch = &batch;
    input.q = at::randn({271, 6, 16}).to(dtype);
    input.k = at::randn({271, 2, 16}).to(dtype), input.v = at::randn({271, 2, 16}).to(dtype);
    input.scale = 0.25;
    const at::Tensor expected = FullAttention().attend(input), all = attend_fused_batch(input);
    EXPECT_EQ(all.scalar_type(), dtype);
    const double tolerance = dtype == at::kFloat ? 1e-5 : 0.05;
    EXPECT_LT((all - expected).abs().max().item<double>(), tolerance);
    AttentionInput some = input;
    some.asked = at::tensor({3, 69, 71, 100, 270}, at::kLong);
    some.q = input.q.index_select(0, some.asked);
    EXPECT_TRUE(at::equal(attend_fused_batch(some), all.index_select(0, some.asked)));
  }
}

}  // namespace
}  // namespace oscar
