// The cache of methods with KIVI's pages against the simulated prefill, which codes and attends by other code.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "attention/cache_factory.h"
#include "attention/cached_attention.h"
#include "attention/stored_rows.h"
#include "cache/kivi_pages.h"
#include "codec/rows.h"
#include "model/attention.h"

namespace oscar {
namespace {

at::Tensor normal(std::uint64_t seed, at::IntArrayRef sizes) {
  at::Tensor x = at::empty(sizes, at::kFloat);
  float* data = x.data_ptr<float>();
  for (std::int64_t i = 0; i < x.numel(); ++i) data[i] = gaussian(seed, static_cast<std::uint64_t>(i));
  return x;
}

ModelConfig model(std::int64_t d) {
  ModelConfig m;
  m.layers = 2, m.query_heads = 4, m.kv_heads = 2, m.head_dim = d;
  return m;
}

// Keys with an outlier channel and a few weak tokens.
AttentionInput random_input(std::int64_t tokens, std::int64_t d, const SequenceBatch& batch) {
  AttentionInput input;
  input.batch = &batch;
  input.q = normal(1, {tokens, 4, d}), input.k = normal(2, {tokens, 2, d}), input.v = normal(3, {tokens, 2, d});
  input.k.select(2, 5).mul_(6.0);
  input.k.narrow(0, 0, 3).mul_(0.05);
  input.scale = 1.0 / std::sqrt(static_cast<double>(d));
  return input;
}

class PagedMethod : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Table, PagedMethod, testing::Values("oscar-tns", "kivi2", "kivi2-g128", "quarot2"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
                           return name;
                         });

TEST_P(PagedMethod, AgreesWithTheSimulatedPrefill) {
  for (const std::int64_t d : {std::int64_t{64}, std::int64_t{128}}) {
    const KvMethod method = make_method(GetParam(), model(d), nullptr, {});
    ASSERT_TRUE(method.paged());
    constexpr std::int64_t kTokens = 420;
    const SequenceBatch batch{{0}, {kTokens}, {0}};
    AttentionInput input = random_input(kTokens, d, batch);
    for (int variant = 0; variant < 3; ++variant) {
      if (variant == 1) input.sliding_window = 150, input.soft_cap = 20.0;
      if (variant == 2) input.sliding_window = 0, input.soft_cap = 0.0, input.sinks = normal(9, {4});
      PagedAttention paged(method, model(d));
      SimulatedPrefillAttention simulated(method);
      const at::Tensor a = paged.attend(input), b = simulated.attend(input);
      EXPECT_LT(((a - b).norm() / b.norm()).item<double>(), 1e-5) << "head size " << d << ", variant " << variant;
      FullAttention exact;
      if (variant == 0) {
        EXPECT_GT(((a - exact.attend(input)).norm() / b.norm()).item<double>(), 0.05) << "nothing was coded";
      }
      const KvCacheSpec spec = cache_spec(method, model(d));
      std::int64_t rows = 0;
      for (const Side side : {Side::kKey, Side::kValue}) {
        const StoredRows same = compare_stored_rows(paged, method, spec, input, side);
        EXPECT_EQ(same.differing, 0);
        // Other rows than those in the cache do differ.
        AttentionInput other = input;
        other.k = input.k + 0.5, other.v = input.v + 0.5;
        const StoredRows differing = compare_stored_rows(paged, method, spec, other, side);
        EXPECT_GT(differing.differing, 0);
        rows += same.rows + differing.rows;
        // Pages 0 and 2, and page 1: together all.
        const StoredRows even = compare_stored_rows(paged, method, spec, input, side, {0, 2}),
                         odd = compare_stored_rows(paged, method, spec, input, side, {1, 2});
        EXPECT_EQ(even.rows + odd.rows, same.rows);
        EXPECT_GT(odd.rows, 0);
        EXPECT_EQ(even.differing + odd.differing, 0);
        const StoredRows read = compare_read_rows(paged, method, spec, input, side);
        EXPECT_EQ(read.rows, same.rows);
        EXPECT_EQ(read.differing, 0) << GetParam();
        EXPECT_GT(compare_read_rows(paged, method, spec, other, side).differing, 0);
        std::int64_t read_in_parts = 0;
        for (const PageSample& part : {PageSample{0, 2}, PageSample{1, 2}}) {
          const StoredRows some = compare_read_rows(paged, method, spec, input, side, part);
          EXPECT_EQ(some.differing, 0);
          EXPECT_GT(compare_read_rows(paged, method, spec, other, side, part).differing, 0);
          read_in_parts += some.rows;
        }
        EXPECT_EQ(read_in_parts, same.rows);
      }
      EXPECT_GT(rows, 2 * 2 * 2 * 200);
    }
  }
}

TEST(KiviPages, BytesAreThoseOfTheDescription) {
  const MethodSpec& tns = *find_method_spec("oscar-tns");
  // 128 tokens of 128 channels: 2 bits each, and two 16-bit values for each channel and 32 tokens: 3 bits an element.
  EXPECT_EQ(KiviPages(tns.key, 1, 128).head_bytes(), 128 * 128 * 3 / 8);
  EXPECT_EQ(KiviPages(tns.value, 1, 128).head_bytes(), 128 * 128 * 3 / 8);
  EXPECT_EQ(KiviPages(find_method_spec("kivi2-g128")->key, 1, 128).head_bytes(), 128 * 128 * 9 / 32);
}

TEST(KiviPages, RowsAndDotsAreThoseThatWereWritten) {
  for (const char* id : {"oscar-tns", "kivi2-g128", "quarot2"}) {
    const MethodSpec& m = *find_method_spec(id);
    for (const SideCode* side : {&m.key, &m.value}) {
      for (const int d : {64, 96, 128}) {
        if (side->axis == CacheAxis::kToken && side->group > 0 && d % side->group != 0) continue;
        const KiviPages pages(*side, 1, d);
        std::vector<std::uint8_t> page(static_cast<std::size_t>(pages.bytes()), 0xff);
        const at::Tensor x = normal(4, {128, d}), q = normal(5, {3, d});
        const int step = pages.least_tokens() > 1 ? pages.least_tokens() : 128;
        for (int t = 0; t < 128; t += step) pages.write(page.data(), t, step, x.const_data_ptr<float>() + t * d);
        at::Tensor y = at::empty({128, d}), dots = at::empty({3, 128});
        pages.read(page.data(), 0, 128, y.mutable_data_ptr<float>());
        pages.to_code_basis(x.mutable_data_ptr<float>(), 128);  // what was written, in the basis of what is read
        EXPECT_LT(((x - y).norm() / x.norm()).item<double>(), 0.6) << id << " " << d;
        EXPECT_GT(((x - y).norm() / x.norm()).item<double>(), 0.02) << id;
        pages.dots(page.data(), 0, 128, q.const_data_ptr<float>(), 3, dots.mutable_data_ptr<float>());
        EXPECT_LT((dots - at::mm(q, y.t())).abs().max().item<double>(), 1e-4) << id << " " << d;
      }
    }
  }
}

TEST(KiviPages, PagesOfAReleasedSequenceAreUsedAgain) {
  const KvMethod method = make_method("oscar-tns", model(64), nullptr, {});
  PagedAttention paged(method, model(64));
  const SequenceBatch batch{{0}, {300}, {0}};
  AttentionInput input = random_input(300, 64, batch);
  const at::Tensor first = paged.attend(input);
  const std::uint64_t bytes = paged.allocated_bytes();
  paged.release(0);
  const SequenceBatch other{{5}, {300}, {0}};
  input.batch = &other;
  EXPECT_TRUE(at::equal(first, paged.attend(input)));
  EXPECT_EQ(paged.allocated_bytes(), bytes);
  // 2 pages of 128 tokens at 3 bits an element with norms, and rings of up to 129 tokens: far below 16 bits.
  EXPECT_LT(bytes, 300u * 2 * 2 * 64 * 2 * 7 / 10);
}

}  // namespace
}  // namespace oscar
