// Latent attention: one cached row that is key and value, and channels with RoPE beside it, against loops by
// definition.
#include <gtest/gtest.h>

#include "attention/cache_factory.h"
#include "attention/fast_prefill.h"
#include "attention/prefill_core.h"
#include "attention/scenario.h"
#include "attention/stored_rows.h"
#include "base/errors.h"
#include "transform/fixed_sides.h"

namespace oscar {
namespace {

const CacheWindows kWindows{4, 10, 1};
constexpr std::int64_t kRope = 16;

// A model with one KV head whose values are its keys.
Scenario latent_scenario(const RowCode& code, Basis basis, const CacheWindows& windows = kWindows) {
  Scenario s = make_scenario(code.head_dim, 1, 3, basis, windows, code);
  for (LayerCode& c : s.method.codes) c.key_sigma = c.value_sigma = {{1.0f, 1.0f, 0.5f, 0.5f}};
  for (LayerTransform& t : s.method.layers) t.value = as_value_side(t.key);
  s.method.rope_dim = s.model.latent.rope_dim = kRope;
  return s;
}

Call latent_call(const Scenario& s, const std::vector<std::int64_t>& lengths) {
  Call call = make_call(s, lengths, 5);
  call.input.v = call.input.k;
  call.input.q_rope = normal(11, {call.batch.tokens(), s.model.query_heads, kRope}) * 2;
  call.input.k_rope = normal(12, {call.batch.tokens(), 1, kRope}) * 2;
  return call;
}

double relative(const at::Tensor& a, const at::Tensor& b) { return ((a - b).norm() / b.norm()).item<double>(); }

// One sequence by definition, from the rows as they are cached: [T, Hq, d].
at::Tensor expected_outputs(const Scenario& s, const AttentionInput& input) {
  const CachedRows rows = decoded_model_rows(s.method, input.layer, Side::kKey, input.k);
  const at::Tensor rope = input.k_rope.to(at::kBFloat16).to(at::kFloat).squeeze(1);  // [T, R]
  at::Tensor out = at::empty_like(input.q);
  for (std::int64_t i = 0; i < input.q.size(0); ++i) {
    at::Tensor seen = rows.plain[0].narrow(0, 0, i + 1).clone();
    const std::int64_t end = kWindows.quantized_end(i + 1);
    if (end > kWindows.sink && rows.coded.defined()) {
      seen.narrow(0, kWindows.sink, end - kWindows.sink)
          .copy_(rows.coded[0].narrow(0, kWindows.sink, end - kWindows.sink));
    }
    const at::Tensor logits =
        at::matmul(input.q[i], seen.t()) + at::matmul(input.q_rope[i], rope.narrow(0, 0, i + 1).t());
    out[i].copy_(at::matmul(at::softmax(logits * input.scale, -1), seen));
  }
  return out;
}

struct LatentCase {
  RowCode code;
  Basis basis;
};

class Latent : public ::testing::TestWithParam<LatentCase> {};

TEST_P(Latent, BothPathsReadWhatTheRowsDecodeTo) {
  const Scenario s = latent_scenario(GetParam().code, GetParam().basis);
  Call call = latent_call(s, {90});
  call.input.batch = &call.batch;
  const at::Tensor expected = expected_outputs(s, call.input);
  SimulatedPrefillAttention prefill(s.method);
  PagedAttention paged(s.method, s.model);
  EXPECT_LT(relative(prefill.attend(call.input), expected), 2e-5);
  EXPECT_LT(relative(paged.attend(call.input), expected), 2e-5);
  AttentionInput without = call.input;  // the channels with RoPE are part of the logits
  without.q_rope = call.input.q_rope * 0.5;
  EXPECT_GT(relative(prefill.attend(without), expected), 1e-2);
  without = call.input;
  without.q = without.q.narrow(0, 80, 10), without.q_rope = without.q_rope.narrow(0, 80, 10);
  without.asked = at::arange(80, 90, at::kLong);
  EXPECT_LT(relative(prefill.attend(without), expected.narrow(0, 80, 10)), 2e-5);
}

TEST_P(Latent, RaggedBatchesGoThroughBothPaths) {
  const Scenario s = latent_scenario(GetParam().code, GetParam().basis);
  Call call = latent_call(s, {40, 1, 27});
  call.input.batch = &call.batch;
  SimulatedPrefillAttention prefill(s.method);
  PagedAttention paged(s.method, s.model);
  EXPECT_LT(relative(paged.attend(call.input), prefill.attend(call.input)), 2e-5);
}

TEST_P(Latent, PagesHoldTheRowOnce) {
  const Scenario s = latent_scenario(GetParam().code, GetParam().basis);
  Call call = latent_call(s, {90});
  call.batch.ids = {0};
  call.input.batch = &call.batch;
  PagedAttention paged(s.method, s.model);
  paged.append(call.input);
  const KvCacheSpec spec = cache_spec(s.method, s.model);
  const StoredRows rows = compare_stored_rows(paged, s.method, spec, call.input, Side::kKey);
  EXPECT_EQ(rows.rows, 90 - 14);
  EXPECT_EQ(rows.differing, 0);
  const StoredRows read = compare_read_rows(paged, s.method, spec, call.input, Side::kKey);
  EXPECT_EQ(read.rows, rows.rows);
  EXPECT_EQ(read.differing, 0);
  EXPECT_EQ(paged.stored(0, 0, Side::kKey).pages, paged.stored(0, 0, Side::kValue).pages);
  // Two pages, the windows (a ring of 11) and the channels of all tokens; capacities grow by eighths.
  const auto bytes = static_cast<double>(2 * 64 * GetParam().code.bits_per_element() * GetParam().code.head_dim / 8 +
                                         2 * 15 * GetParam().code.head_dim + 2 * 90 * kRope);
  EXPECT_GE(static_cast<double>(paged.allocated_bytes()), bytes);
  EXPECT_LT(static_cast<double>(paged.allocated_bytes()), 1.2 * bytes);
}

INSTANTIATE_TEST_SUITE_P(Codes, Latent,
                         ::testing::Values(LatentCase{uniform_code(64), Basis::kLayer},
                                           LatentCase{uniform_code(52), Basis::kSkewed},
                                           LatentCase{band_code(64, {4, 2, 1, 0}), Basis::kSkewed},
                                           LatentCase{band_code(512, {4, 4, 2, 1}), Basis::kSkewed},
                                           LatentCase{band_code(512, {4, 2, 1, 2}, true), Basis::kSkewed},
                                           LatentCase{band_code(64, {4, 0, 0, 4}, true), Basis::kLayer},
                                           LatentCase{uniform_code(64), Basis::kIdentity}));

TEST(LatentAttention, TheExactCacheIsFullAttention) {
  Scenario s = latent_scenario(uniform_code(64), Basis::kIdentity);
  s.method.quantized = false;
  Call call = latent_call(s, {50, 3});
  call.input.batch = &call.batch;
  for (at::Tensor* x : {&call.input.k, &call.input.v, &call.input.k_rope}) *x = x->to(at::kBFloat16).to(at::kFloat);
  FullAttention full;
  const at::Tensor expected = full.attend(call.input);
  EXPECT_EQ(expected.sizes(), call.input.q.sizes());
  SimulatedPrefillAttention prefill(s.method);
  PagedAttention paged(s.method, s.model);
  EXPECT_LT(relative(prefill.attend(call.input), expected), 2e-5);
  EXPECT_LT(relative(paged.attend(call.input), expected), 2e-5);
  EXPECT_LT(relative(attend_fused_batch(with_rope(call.input)), expected), 2e-5);
  Call one = latent_call(s, {50});
  one.input.batch = &one.batch;
  for (at::Tensor* x : {&one.input.k, &one.input.v, &one.input.k_rope}) *x = x->to(at::kBFloat16).to(at::kFloat);
  EXPECT_LT(relative(full.attend(one.input), expected_outputs(s, one.input)), 2e-5);
}

TEST(LatentModel, BytesCountTheRowOnceAndTheChannelsBeside) {
  ModelConfig model;
  model.layers = 3, model.query_heads = 16, model.kv_heads = 1, model.head_dim = 512, model.latent.rope_dim = 64;
  const KvMethod exact = make_method("bf16", model, nullptr, kWindows);
  EXPECT_EQ(exact.token_bytes(model), 1152);
  EXPECT_EQ(held_bytes(exact, model, 100), 3u * 100 * 1152);
  EXPECT_EQ(exact.bits_per_element_at(100), 16);
  KvMethod coded = make_method("naive2", model, nullptr, kWindows);
  EXPECT_EQ(coded.rope_dim, 64);
  EXPECT_EQ(coded.token_bytes(model), 128 + 4 + 128);
  EXPECT_EQ(coded.bits_per_element(), 2.0625);
  // 64 + 14 tokens: one page, the windows, and the channels of all.
  EXPECT_EQ(held_bytes(coded, model, 78), 3u * (64 * 132 + 14 * 1024 + 78 * 128));
  EXPECT_NEAR(coded.bits_per_element_at(1 << 20), (512 * 2.0625 + 64 * 16) / 576, 1e-3);
  const KvMethod fp8 = make_method("fp8", model, nullptr, kWindows);
  EXPECT_EQ(fp8.token_bytes(model), 512 + 128);
  EXPECT_EQ(held_bytes(fp8, model, 100), 3u * 100 * 640);
  EXPECT_NEAR(fp8.bits_per_element_at(100), 8.0 * 640 / 576, 1e-9);
}

TEST(LatentModel, MethodsThatCodeKeysAndValuesDifferentlyAreRefused) {
  ModelConfig model;
  model.layers = 4, model.query_heads = 4, model.kv_heads = 1, model.head_dim = 128, model.architecture = "Latent";
  EXPECT_NO_THROW(make_method("kivi2", model, nullptr, kWindows));
  model.latent.rope_dim = 32;
  for (const char* id : {"kivi2", "kivi2-g128", "turboquant4", "turboquant3"})
    EXPECT_THROW(make_method(id, model, nullptr, kWindows), UsageError) << id;
  for (const char* id : {"fp8", "q4_0", "hadamard2"}) EXPECT_NO_THROW(make_method(id, model, nullptr, kWindows)) << id;
}

}  // namespace
}  // namespace oscar
