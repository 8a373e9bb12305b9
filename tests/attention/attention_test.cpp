// The two paths of a quantized cache against each other and against textbook attention.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "attention/begin_step.h"
#include "attention/cached_attention.h"
#include "attention/scenario.h"
#include "base/errors.h"
#include "cache/row_pages.h"
#include "codec/rows.h"
#include "model/attention.h"
#include "support/encoded_row.h"

namespace oscar {
namespace {

// Two groups in a row.
Scenario make_scenario(std::int64_t d, std::int64_t kv_heads, std::int64_t group, Basis basis,
                       const CacheWindows& windows, float clip = 0.95f) {
  return make_scenario(d, kv_heads, group, basis, windows, uniform_code(static_cast<int>(d), static_cast<int>(d) / 2),
                       clip);
}

at::Tensor attend(Attention& attention, Call& call, std::int64_t layer = 0) {
  call.input.batch = &call.batch;
  call.input.layer = layer;
  return attention.attend(call.input);
}

double difference(const at::Tensor& a, const at::Tensor& b) { return ((a - b).norm() / b.norm()).item<double>(); }

// Query by query, from the definitions: codec, windows, transforms.
at::Tensor textbook(const Scenario& s, const Call& call, std::int64_t layer = 0) {
  const AttentionInput& in = call.input;
  const std::int64_t d = s.model.head_dim, group = s.model.gqa_group();
  at::Tensor out = at::empty_like(in.q);
  std::int64_t offset = 0;
  for (const std::int64_t length : call.batch.lengths) {
    for (std::int64_t h = 0; h < s.model.query_heads; ++h) {
      const std::int64_t kv = h / group;
      const auto rows = [&](const at::Tensor& x, Side side, bool quantize) {
        const SideTransform* t = s.method.transform(layer, side);
        at::Tensor r = x.narrow(0, offset, length).select(1, kv);
        if (t != nullptr && t->mean.defined()) r = r - t->mean[kv];
        if (t != nullptr) r = at::matmul(r, t->forward[t->forward.size(0) == 1 ? 0 : kv]);
        r = r.to(at::kBFloat16).to(at::kFloat).contiguous();
        if (quantize) {
          const RowCodec codec = s.method.codec(layer, side, kv);
          quantize_rows(codec, r.data_ptr<float>(), length, 0, r.data_ptr<float>(), 0);
        }
        return r.to(at::kDouble);
      };
      const at::Tensor k = rows(in.k, Side::kKey, false), v = rows(in.v, Side::kValue, false);
      const at::Tensor kq = rows(in.k, Side::kKey, true), vq = rows(in.v, Side::kValue, true);
      const SideTransform* kt = s.method.transform(layer, Side::kKey);
      const SideTransform* vt = s.method.transform(layer, Side::kValue);
      for (std::int64_t i = 0; i < length; ++i) {
        at::Tensor q = in.q[offset + i][h].to(at::kDouble);
        double shift = 0.0;
        if (kt != nullptr && kt->mean.defined())
          shift = in.scale * at::dot(q, kt->mean[kv].to(at::kDouble)).item<double>();
        if (kt != nullptr) {
          const at::Tensor m = kt->orthogonal() ? kt->forward : kt->query_side;
          q = at::matmul(q, m[m.size(0) == 1 ? 0 : kv].to(at::kDouble));
        }
        at::Tensor o = at::zeros({d}, at::kDouble);
        double total = in.sinks.defined() ? std::exp(in.sinks[h].item<double>()) : 0.0, seen = 0.0;
        const std::int64_t end = s.method.windows.quantized_end(i + 1);
        for (std::int64_t j = 0; j <= i; ++j) {
          if (in.sliding_window > 0 && i - j >= in.sliding_window) continue;
          if (in.chunk > 0 && i / in.chunk != j / in.chunk) continue;
          const bool quantized = s.method.quantized && j >= s.method.windows.sink && j < end;
          double x = in.scale * at::dot(q, (quantized ? kq : k)[j]).item<double>() + shift;
          if (in.soft_cap > 0) x = in.soft_cap * std::tanh(x / in.soft_cap);
          o += std::exp(x) * (quantized ? vq : v)[j];
          seen += std::exp(x);
        }
        total += seen;
        o /= total;
        if (vt != nullptr) {
          const at::Tensor m = vt->orthogonal() ? vt->forward.transpose(1, 2) : vt->inverse;
          o = at::matmul(o, m[m.size(0) == 1 ? 0 : kv].to(at::kDouble));
          if (vt->mean.defined()) o += seen / total * vt->mean[kv];
        }
        out[offset + i][h] = o.to(at::kFloat);
      }
    }
    offset += length;
  }
  return out;
}

TEST(CachedAttention, BothPathsEqualTheDefinition) {
  std::uint64_t seed = 1;
  for (const Basis basis : {Basis::kIdentity, Basis::kLayer, Basis::kHead, Basis::kCentered, Basis::kSkewed}) {
    for (const CacheWindows& windows : {CacheWindows{2, 5, 1}, {0, 3, 4}, {4, 0, 1}}) {
      Scenario s = make_scenario(32, 2, 3, basis, windows);
      Call call = make_call(s, {23, 1, 9}, seed += 10);
      if (seed % 20 == 1) call.input.sliding_window = 11;
      if (seed % 20 == 11) call.input.chunk = 9;
      if (seed % 30 == 1) call.input.soft_cap = 2.0;
      if (seed % 40 == 1) call.input.sinks = normal(seed + 5, {s.model.query_heads});
      const at::Tensor expected = textbook(s, call, 1);
      SimulatedPrefillAttention prefill(s.method);
      PagedAttention decode(s.method, s.model);
      // A BF16 rounding of a rotated row may fall the other way in the matrix product of the textbook, which moves a
      // code by one step: rare and small.
      EXPECT_LT(difference(attend(prefill, call, 1), expected), 5e-3) << static_cast<int>(basis);
      EXPECT_LT(difference(attend(decode, call, 1), attend(prefill, call, 1)), 2e-6) << static_cast<int>(basis);
    }
  }
}

TEST(CachedAttention, PathsAgreeOnLongRaggedBatches) {
  std::uint64_t seed = 500;
  for (const std::int64_t d : {64, 80, 96, 128, 256}) {
    Scenario s = make_scenario(d, 2, 2, Basis::kHead, {64, 256, d == 96 ? 8 : 1});
    Call call = make_call(s, {420, 320, 321, 64, 5}, seed += 10);
    SimulatedPrefillAttention prefill(s.method);
    PagedAttention decode(s.method, s.model);
    const at::Tensor a = attend(prefill, call), b = attend(decode, call);
    EXPECT_LT(difference(b, a), 2e-6) << d;
    EXPECT_LT((a - b).abs().max().item<double>(), 2e-5) << d;
  }
}

// Transforms that are not orthogonal, means, and block widths that differ between layers and sides, zero among them.
TEST(CachedAttention, BlockWidthsRunInBothPaths) {
  std::uint64_t seed = 700;
  for (const std::int64_t d : {32, 64, 96, 128, 256}) {
    Scenario s = make_scenario(d, 2, 2, Basis::kSkewed, {4, 16, 1}, 0.0f);
    s.method.key_encoder = s.method.value_encoder = Encoder::kSearch;
    const int n = static_cast<int>(d);
    const std::vector<std::array<float, kBands>> sigma(2, {2.0f, 1.5f, 1.0f, 0.5f});
    s.method.codes = {{band_code(n, {4, 2, 1, 0}), band_code(n, {2, 1, 0, 0}), sigma, sigma},
                      {band_code(n, {4, 4, 2, 2}), band_code(n, {0, 0, 0, 0}), sigma, sigma}};
    Call call = make_call(s, {90, 33, 7}, seed += 10);
    for (const std::int64_t layer : {0, 1}) {
      SimulatedPrefillAttention prefill(s.method);
      PagedAttention decode(s.method, s.model);
      const at::Tensor a = attend(prefill, call, layer), b = attend(decode, call, layer);
      EXPECT_LT(difference(b, a), 2e-6) << d;
      if (d == 32) {
        EXPECT_LT(difference(a, textbook(s, call, layer)), 5e-3);
      }
    }
  }
}

// Every row of every page is what the codec makes of the rotated row of the prefill path.
TEST(CachedAttention, PagesHoldTheCodesOfThePrefillPath) {
  Scenario s = make_scenario(128, 3, 1, Basis::kCentered, {16, 32, 4}, 0.92f);
  Call call = make_call(s, {300}, 900);
  PagedAttention decode(s.method, s.model);
  attend(decode, call);
  const PageLayout layout = page_layout(s.method.code(0, Side::kKey), s.method.code(0, Side::kValue));
  for (const Side side : {Side::kKey, Side::kValue}) {
    const RowPages pages(layout, side);
    const StoredPages held = decode.stored(0, 7, side);
    ASSERT_EQ(held.tokens, s.method.windows.quantized_end(300) - 16);
    const at::Tensor rows =
        transformed_rows(side == Side::kKey ? call.input.k : call.input.v, s.method.transform(0, side)).to(at::kFloat);
    for (std::int64_t h = 0; h < 3; ++h) {
      const RowCodec codec = s.method.codec(0, side, h);
      EXPECT_FLOAT_EQ(codec.clip, 0.92f);
      for (std::int64_t t = 0; t < held.tokens; ++t) {
        std::vector<std::uint8_t> codes(128), stored(128), parameters(8), stored_parameters(8);
        encode_rows(codec, rows[16 + t][h].contiguous().data_ptr<float>(), 1, 0, codes.data(), parameters.data());
        pages.get(held.pages.data() + (t / kPageTokens * 3 + h) * layout.bytes(), static_cast<int>(t % kPageTokens),
                  stored.data(), stored_parameters.data());
        ASSERT_EQ(stored, codes);
        ASSERT_EQ(stored_parameters, parameters);
      }
    }
  }
}

TEST(CachedAttention, Bf16IsFullAttentionOnRoundedRows) {
  Scenario s = make_scenario(64, 2, 4, Basis::kIdentity, {64, 256, 1});
  s.method.quantized = false;
  Call call = make_call(s, {600, 3}, 40);
  SimulatedPrefillAttention prefill(s.method);
  PagedAttention decode(s.method, s.model);
  FullAttention full;
  Call rounded = call;
  rounded.input.k = call.input.k.to(at::kBFloat16).to(at::kFloat);
  rounded.input.v = call.input.v.to(at::kBFloat16).to(at::kFloat);
  const at::Tensor expected = attend(full, rounded);
  EXPECT_LT(difference(attend(prefill, call), expected), 1e-6);
  EXPECT_LT(difference(attend(decode, call), expected), 1e-6);
  EXPECT_TRUE(at::equal(attend(prefill, call), attend(prefill, call)));  // the null run gives a KL of exactly 0
}

TEST(CachedAttention, ShortContextsAreNotQuantized) {
  Scenario s = make_scenario(64, 1, 2, Basis::kIdentity, {64, 256, 1});
  Scenario plain = s;
  plain.method.quantized = false;
  Call call = make_call(s, {320}, 50);
  SimulatedPrefillAttention a(s.method), b(plain.method);
  EXPECT_TRUE(at::equal(attend(a, call), attend(b, call)));
}

// One call of many tokens, many calls of one token, other sequences coming and going between: the same numbers.
TEST(CachedAttention, CallsMayBeCutAnywhere) {
  Scenario s = make_scenario(64, 2, 2, Basis::kLayer, {4, 16, 1});
  Call whole = make_call(s, {150, 90, 200}, 60);
  PagedAttention at_once(s.method, s.model), in_parts(s.method, s.model);
  const at::Tensor expected = attend(at_once, whole);
  std::vector<std::int64_t> done(3, 0), offset{0, 150, 240};
  at::Tensor result = at::zeros_like(expected);
  for (std::uint64_t step = 0; done[0] + done[1] + done[2] < 440; ++step) {
    Call part;
    std::vector<at::Tensor> q, k, v;
    std::vector<std::pair<std::int64_t, std::int64_t>> places;
    for (std::size_t i = 0; i < 3; ++i) {
      const auto wanted = static_cast<std::int64_t>(random_bits(9, i, step) % 40);
      const std::int64_t n = std::min(wanted < 20 ? wanted % 3 : wanted, whole.batch.lengths[i] - done[i]);
      if (n == 0) continue;
      const std::int64_t at = offset[i] + done[i];
      part.batch.ids.push_back(whole.batch.ids[i]), part.batch.starts.push_back(done[i]);
      part.batch.lengths.push_back(n);
      q.push_back(whole.input.q.narrow(0, at, n)), k.push_back(whole.input.k.narrow(0, at, n));
      v.push_back(whole.input.v.narrow(0, at, n));
      places.emplace_back(at, n);
      done[i] += n;
    }
    if (places.empty()) continue;
    part.input = whole.input;
    part.input.q = at::cat(q), part.input.k = at::cat(k), part.input.v = at::cat(v);
    const at::Tensor o = attend(in_parts, part);
    std::int64_t from = 0;
    for (const auto& [at, n] : places) {
      result.narrow(0, at, n).copy_(o.narrow(0, from, n));
      from += n;
    }
    if (step % 5 == 0) {  // a passing sequence takes pages and gives them back
      Call other = make_call(s, {100}, 70 + step);
      other.batch.ids = {999};
      attend(in_parts, other);
      in_parts.release(999);
    }
  }
  EXPECT_LT(difference(result, expected), 1e-6);
}

TEST(CachedAttention, ReleasedPagesAreUsedAgain) {
  Scenario s = make_scenario(64, 1, 1, Basis::kIdentity, {4, 16, 1});
  PagedAttention decode(s.method, s.model);
  Call call = make_call(s, {300, 200}, 80);
  attend(decode, call);
  EXPECT_EQ(decode.pages_in_use(), 5 + 3);
  const std::uint64_t bytes = decode.allocated_bytes();
  decode.release(7);
  EXPECT_EQ(decode.pages_in_use(), 3);
  EXPECT_EQ(decode.tokens(0, 7), 0);
  Call again = make_call(s, {300}, 90);
  attend(decode, again);
  EXPECT_EQ(decode.allocated_bytes(), bytes);
  decode.release(7), decode.release(8), decode.release(12345);
  EXPECT_EQ(decode.pages_in_use(), 0);
}

TEST(CachedAttention, AppendingAloneFillsTheSameCache) {
  const Scenario s = make_scenario(32, 2, 2, Basis::kHead, {8, 16, 4});
  Call call = make_call(s, {150, 40}, 21);
  PagedAttention attended(s.method, s.model), appended(s.method, s.model);
  attend(attended, call);
  appended.append(call.input);
  EXPECT_EQ(attended.allocated_bytes(), appended.allocated_bytes());
  const PageLayout layout = page_layout(s.method.code(0, Side::kKey), s.method.code(0, Side::kValue));
  for (const std::int64_t id : {7, 8}) {
    const StoredPages a = attended.stored(0, id), b = appended.stored(0, id);
    EXPECT_EQ(a.tokens, b.tokens);
    EXPECT_EQ(a.pages, b.pages);
    EXPECT_EQ(a.pages.size(), static_cast<std::size_t>((a.tokens + 63) / 64 * 2 * layout.bytes()));
  }
  EXPECT_EQ(attended.stored(0, 7).tokens, 124);  // 150 - 8 - 16 leave, in groups of 4: 126 -> 124
  EXPECT_THROW(appended.append(call.input), std::invalid_argument);
}

TEST(CachedAttention, AllocatedBytesFollowTheBitsPerElement) {
  Scenario s = make_scenario(128, 1, 1, Basis::kIdentity, {64, 256, 1});
  s.method.codes.assign(2, {uniform_code(128), uniform_code(128), {}, {}});
  PagedAttention decode(s.method, s.model);
  Call call = make_call(s, {2048}, 95);
  attend(decode, call, 0), attend(decode, call, 1);
  const double elements = 2.0 * 2 * 128 * 2048, ideal = s.method.bits_per_element_at(2048) * elements / 8;
  EXPECT_NEAR(s.method.bits_per_element_at(2048), 2.25 + 13.75 * 320 / 2048, 1e-12);
  const auto held = static_cast<double>(decode.allocated_bytes());
  EXPECT_GE(held, ideal);
  EXPECT_LE(held, 1.15 * ideal);  // page tails, growth by an eighth
}

TEST(CachedAttention, RefusesGapsAndNonFiniteRows) {
  Scenario s = make_scenario(64, 1, 1, Basis::kIdentity, {4, 16, 1});
  PagedAttention decode(s.method, s.model);
  SimulatedPrefillAttention prefill(s.method);
  Call call = make_call(s, {60}, 99);
  call.batch.starts = {5};
  EXPECT_THROW(attend(decode, call), std::invalid_argument);
  EXPECT_THROW(attend(prefill, call), std::invalid_argument);
  call.batch.starts = {0};
  call.input.k[20][0][3] = NAN;
  for (Attention* attention : std::initializer_list<Attention*>{&decode, &prefill}) {
    try {
      attend(*attention, call, 1);
      FAIL() << "no NumericalError";
    } catch (const NumericalError& e) {
      EXPECT_THAT(e.what(), testing::HasSubstr("layer 1, KV head 0"));
    }
  }
}

TEST(CachedAttention, KeepsTheDtypeOfTheModel) {
  Scenario s = make_scenario(64, 1, 2, Basis::kLayer, {4, 16, 1});
  Call call = make_call(s, {80}, 101);
  for (at::Tensor* x : {&call.input.q, &call.input.k, &call.input.v}) *x = x->to(at::kBFloat16);
  PagedAttention decode(s.method, s.model);
  SimulatedPrefillAttention prefill(s.method);
  const at::Tensor a = attend(decode, call), b = attend(prefill, call);
  EXPECT_EQ(a.scalar_type(), at::kBFloat16);
  EXPECT_EQ(b.scalar_type(), at::kBFloat16);
  EXPECT_LT(difference(a.to(at::kFloat), b.to(at::kFloat)), 2e-3);
}

}  // namespace
}  // namespace oscar
