// Latent attention: one cached vector that is key and value gives what a cache of both gives, from half the bytes.
#include <gtest/gtest.h>

#include "attention/cache_factory.h"
#include "attention/reconstruction.h"
#include "attention/scenario.h"
#include "attention/stored_rows.h"
#include "base/errors.h"
#include "rotation/latent_fit.h"

namespace oscar {
namespace {

const CacheWindows kWindows{4, 10, 1};

// A model with one KV head, and the method that keeps one vector; `both` is the same method with keys and values apart.
struct LatentScenario {
  Scenario one, both;

  LatentScenario(const RowCode& code, Basis basis, const CacheWindows& windows = kWindows)
      : one(make_scenario(code.head_dim, 1, 3, basis, windows, code)) {
    const std::vector<std::array<float, kBands>> sigma(1, {1.0f, 1.0f, 0.5f, 0.5f});
    for (LayerCode& c : one.method.codes) c.key_sigma = c.value_sigma = sigma;
    for (LayerTransform& t : one.method.layers) t.value = as_value_side(t.key);
    both = one;
    one.method.one_vector = true;
    one.model.latent.rank = code.head_dim - 8, one.model.latent.rotated = 8;
  }
};

Call latent_call(const Scenario& s, const std::vector<std::int64_t>& lengths) {
  Call call = make_call(s, lengths, 5);
  call.input.v = call.input.k;
  return call;
}

double relative(const at::Tensor& a, const at::Tensor& b) { return ((a - b).norm() / b.norm()).item<double>(); }

struct LatentCase {
  RowCode code;
  Basis basis;
};

class OneVector : public ::testing::TestWithParam<LatentCase> {};

// Attention of one sequence by definition, over decoded keys that are also the values. [T, Hq, d]
at::Tensor expected_outputs(const Scenario& s, const AttentionInput& input) {
  const CachedRows rows = decoded_model_rows(s.method, input.layer, Side::kKey, input.k);
  at::Tensor out = at::empty_like(input.q);
  for (std::int64_t i = 0; i < input.q.size(0); ++i) {
    at::Tensor seen = rows.plain[0].narrow(0, 0, i + 1).clone();
    const std::int64_t end = kWindows.quantized_end(i + 1);
    if (end > kWindows.sink) {
      seen.narrow(0, kWindows.sink, end - kWindows.sink)
          .copy_(rows.coded[0].narrow(0, kWindows.sink, end - kWindows.sink));
    }
    const at::Tensor weights = at::softmax(at::matmul(input.q[i], seen.t()) * input.scale, -1);
    out[i].copy_(at::matmul(weights, seen));
  }
  return out;
}

TEST_P(OneVector, PathsReadWhatTheKeysDecodeTo) {
  const LatentScenario s(GetParam().code, GetParam().basis);
  Call call = latent_call(s.one, {90});
  call.input.batch = &call.batch;
  const at::Tensor expected = expected_outputs(s.one, call.input);
  SimulatedPrefillAttention prefill(s.one.method);
  PagedAttention paged(s.one.method, s.one.model), paged_both(s.both.method, s.both.model);
  EXPECT_LT(relative(prefill.attend(call.input), expected), 2e-5);
  EXPECT_LT(relative(paged.attend(call.input), expected), 2e-5);
  paged_both.append(call.input);
  // Rows of the windows and, in whole pages, codes: half of what both take, but for page tables.
  EXPECT_LT(static_cast<double>(paged.allocated_bytes()), 0.51 * static_cast<double>(paged_both.allocated_bytes()));
}

TEST_P(OneVector, RaggedBatchesGoThroughBothPaths) {
  const LatentScenario s(GetParam().code, GetParam().basis);
  Call call = latent_call(s.one, {40, 1, 27});
  call.input.batch = &call.batch;
  SimulatedPrefillAttention prefill(s.one.method);
  PagedAttention paged(s.one.method, s.one.model);
  EXPECT_LT(relative(paged.attend(call.input), prefill.attend(call.input)), 2e-5);
}

TEST_P(OneVector, PagesHoldWhatTheEncoderMakes) {
  const LatentScenario s(GetParam().code, GetParam().basis);
  Call call = latent_call(s.one, {90});
  call.batch.ids = {0};
  call.input.batch = &call.batch;
  PagedAttention paged(s.one.method, s.one.model);
  paged.append(call.input);
  const KvCacheSpec spec = cache_spec(s.one.method, s.one.model);
  for (const Side side : {Side::kKey, Side::kValue}) {
    const StoredRows rows = compare_stored_rows(paged, s.one.method, spec, call.input, side);
    EXPECT_EQ(rows.rows, 90 - 14);
    EXPECT_EQ(rows.differing, 0);
    const StoredRows read = compare_read_rows(paged, s.one.method, spec, call.input, side);
    EXPECT_EQ(read.rows, rows.rows);
    EXPECT_EQ(read.differing, 0);
  }
  EXPECT_EQ(paged.stored(0, 0, Side::kKey).pages, paged.stored(0, 0, Side::kValue).pages);
}

INSTANTIATE_TEST_SUITE_P(Codes, OneVector,
                         ::testing::Values(LatentCase{uniform_code(64), Basis::kLayer},
                                           LatentCase{uniform_code(576, 64), Basis::kSkewed},
                                           LatentCase{uniform_code(52), Basis::kSkewed},
                                           LatentCase{band_code(64, {4, 2, 1, 0}), Basis::kSkewed},
                                           LatentCase{band_code(160, {4, 4, 2, 1}), Basis::kSkewed},
                                           LatentCase{uniform_code(64), Basis::kIdentity}));

TEST(OneVectorModel, BytesCountOnce) {
  ModelConfig model;
  model.layers = 3, model.query_heads = 16, model.kv_heads = 1, model.head_dim = 576;
  model.latent.rank = 512, model.latent.rotated = 64;
  const KvMethod exact = make_method("bf16", model, nullptr, kWindows);
  EXPECT_EQ(exact.token_bytes(model), 1152);
  EXPECT_EQ(held_bytes(exact, model, 100), 3u * 100 * 1152);
  KvMethod coded = make_method("naive2", model, nullptr, kWindows);
  EXPECT_TRUE(coded.one_vector);
  coded.codes.assign(3, {.key = uniform_code(576, 64), .value = uniform_code(576, 64)});
  EXPECT_EQ(coded.token_bytes(model), 180);  // 144 of codes, 9 scales and zero points
  // 64 + 14 tokens: one page, and the windows in BF16.
  EXPECT_EQ(held_bytes(coded, model, 78), 3u * (64 * 180 + 14 * 1152));
}

TEST(OneVectorModel, MethodsOfOtherPapersAreRefused) {
  ModelConfig model;
  model.layers = 4, model.query_heads = 4, model.kv_heads = 1, model.head_dim = 128, model.architecture = "Latent";
  EXPECT_NO_THROW(make_method("kivi2", model, nullptr, kWindows));
  model.latent.rank = 96, model.latent.rotated = 32;
  for (const MethodRow& row : method_registry()) {
    if (!row.description) continue;
    EXPECT_THROW(make_method(row.id, model, nullptr, kWindows), UsageError) << row.id;
  }
  EXPECT_NO_THROW(make_method("hadamard2", model, nullptr, kWindows));
}

}  // namespace
}  // namespace oscar
