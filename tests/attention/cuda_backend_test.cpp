// The decode path on a GPU against the CPU: the same bytes in the pages, outputs within the rounding of the query.
// Needs a GPU; skipped without one.
#include <ATen/ATen.h>
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "attention/backend_comparison.h"
#include "attention/cached_attention.h"
#include "attention/rotated_scenario.h"
#include "base/errors.h"
#include "cache/row_pages.h"
#include "codec/rows.h"
#include "kernels/append/append_tokens.h"
#include "kernels/common/fragment_pages.h"

namespace oscar {
namespace {

// One group in a row: what the kernels are built for.
Scenario make_scenario(std::int64_t d, std::int64_t kv_heads, std::int64_t group, Basis basis,
                       const CacheWindows& windows) {
  return make_scenario(d, kv_heads, group, basis, windows, uniform_code(static_cast<int>(d)));
}

class PagedBackendCuda : public BackendComparison {
 protected:
  // Slots that hold no token yet may differ: token by token.
  void expect_same_pages(const Scenario& s, std::int64_t layer, const StoredPages& a, const StoredPages& b) override {
    ASSERT_EQ(a.pages.size(), b.pages.size());
    const std::int64_t d = s.model.head_dim, heads = s.model.kv_heads;
    const PageLayout layout = page_layout(s.method.code(layer, Side::kKey), s.method.code(layer, Side::kValue));
    std::int64_t differing = 0;
    for (const Side side : {Side::kKey, Side::kValue}) {
      const RowPages reader(layout, side);
      std::vector<std::uint8_t> ca(static_cast<std::size_t>(d)), cb(ca.size()), pa(16), pb(16);
      for (std::int64_t t = 0; t < a.tokens; ++t) {
        for (std::int64_t h = 0; h < heads; ++h) {
          const std::int64_t at = (t / kPageTokens * heads + h) * layout.bytes();
          reader.get(a.pages.data() + at, static_cast<int>(t % kPageTokens), ca.data(), pa.data());
          reader.get(b.pages.data() + at, static_cast<int>(t % kPageTokens), cb.data(), pb.data());
          differing += ca != cb || pa != pb ? 1 : 0;
        }
      }
    }
    EXPECT_EQ(differing, 0);
  }
};

// With deviations of blocks, if its code has such.
Scenario with_sigma(Scenario s) {
  const std::vector<std::array<float, kBands>> sigma(static_cast<std::size_t>(s.model.kv_heads),
                                                     {1.5f, 1.2f, 1.0f, 0.8f});
  for (LayerCode& code : s.method.codes) {
    if (code.key.layout == Layout::kBlocks) code.key_sigma = code.value_sigma = sigma;
  }
  return s;
}

constexpr double kQueryRounding = 6e-3;  // BF16 queries, FP16 weights

TEST_F(PagedBackendCuda, SameBytesAndOutputsAsTheCpu) {
  std::uint64_t seed = 1;
  for (const std::int64_t d : {64, 128, 256, 512}) {
    for (const Basis basis : {Basis::kIdentity, Basis::kLayer, Basis::kHead, Basis::kCentered, Basis::kSkewed}) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        const RowCode code = d == 512 ? band_code(512, {4, 2, 1, 1}) : uniform_code(static_cast<int>(d));
        const Scenario s = with_sigma(make_scenario(d, 2, 3, basis, {.sink = 64, .recent = 40, .flush = 1}, code));
        SCOPED_TRACE(testing::Message() << "d " << d << " basis " << static_cast<int>(basis));
        compare(s, make_call(s, {171, 1, 90}, seed += 10, dtype), kQueryRounding);
      }
    }
  }
}

TEST_F(PagedBackendCuda, WindowsEncodersAndGroups) {
  std::uint64_t seed = 5000;
  for (const CacheWindows& windows : {CacheWindows{0, 16, 1}, CacheWindows{64, 256, 16}, CacheWindows{20, 33, 8},
                                      CacheWindows{128, 0, 1}, CacheWindows{0, 0, 1}}) {
    for (const std::int64_t group : {1, 5, 12}) {
      Scenario s = make_scenario(128, 2, group, Basis::kLayer, windows);
      s.method.key_encoder = s.method.value_encoder = group == 5 ? Encoder::kSearch : Encoder::kMinMax;
      SCOPED_TRACE(testing::Message() << "windows " << windows.sink << "," << windows.recent << "," << windows.flush
                                      << " group " << group);
      compare(s, make_call(s, {400, 130}, seed += 10, at::kFloat), kQueryRounding);
    }
  }
}

TEST_F(PagedBackendCuda, BlocksOfAnyWidths) {
  std::uint64_t seed = 9000;
  const std::vector<std::array<std::uint8_t, 4>> choices = {{4, 2, 1, 1}, {4, 4, 0, 0}, {2, 2, 2, 2}, {4, 2, 1, 0}};
  for (const std::array<std::uint8_t, 4>& widths : choices) {
    Scenario s = make_scenario(128, 2, 4, Basis::kLayer, {64, 40, 1});
    // Another layout in the second layer: pages of another size.
    const std::vector<std::array<float, 4>> sigma = {{1.5f, 1.2f, 1.0f, 0.8f}, {1.4f, 1.1f, 0.9f, 1.0f}};
    s.method.codes[0] = {band_code(128, widths), band_code(128, {4, 2, 1, 1}), sigma, sigma};
    s.method.codes[1] = {band_code(128, {2, 2, 1, 0}), band_code(128, widths), sigma, sigma};
    SCOPED_TRACE(testing::Message() << "widths " << int{widths[0]} << int{widths[1]} << int{widths[2]}
                                    << int{widths[3]});
    compare(s, make_call(s, {260, 130}, seed += 10, at::kFloat), kQueryRounding);
  }
}

// The logits' part that depends on the position: every head size, few and many heads, windows that are no multiple of a
// tile, several pages, a soft cap and a sliding window.
TEST_F(PagedBackendCuda, KeysCenteredBeforeRope) {
  std::uint64_t seed = 12000;
  for (const int d : {64, 128, 256, 512}) {
    for (const std::int64_t group : {2, 5, d == 512 ? 8 : 12}) {
      for (const double bias : {1.0, 30.0}) {
        Scenario s = rotated_scenario({.sink = group == 5 ? 20 : 64, .recent = 40, .flush = 1}, bias,
                                      band_code(d, {4, 4, 2, 1}), group);
        Call call = biased_call(s, {310, 1, 90}, seed += 10);
        call.input.q = call.input.q / bias;  // logits of a size that softmax does not saturate
        if (group == 5) call.input.soft_cap = 3.0;
        if (group > 5) call.input.sliding_window = 130;
        SCOPED_TRACE(testing::Message() << "d " << d << " group " << group << " bias " << bias);
        EXPECT_EQ(decode_note(s.method, s.model, gpu_), "");  // the fast kernel
        compare(s, call, kQueryRounding);
      }
    }
  }
}

// One layer with a rotated mean, one with a mean that is the same everywhere; filled at once and token by token.
TEST_F(PagedBackendCuda, RotatedMeansInOneLayerAlone) {
  Scenario s = rotated_scenario({64, 40, 1}, 5.0, band_code(128, {4, 2, 1, 1}), 4);
  s.method.layers[1].key.rotated_mean = false;
  const Call call = biased_call(s, {400}, 13000);
  compare(s, call, kQueryRounding);
  PagedAttention at_once(s.method, s.model, gpu_), stepwise(s.method, s.model, gpu_);
  const SequenceBatch all{{7}, {400}, {0}}, first{{7}, {380}, {0}}, rest{{7}, {20}, {380}};
  for (const std::int64_t layer : {0, 1}) {
    const at::Tensor expected = stepwise.attend(part(call, all, 0, 400, layer, gpu_));
    at_once.append(part(call, first, 0, 380, layer, gpu_));
    const at::Tensor found = at_once.attend(part(call, rest, 380, 20, layer, gpu_));
    EXPECT_TRUE(at::equal(found, expected.narrow(0, 380, 20))) << layer;
    expect_same_pages(s, layer, at_once.stored(layer, 7), stepwise.stored(layer, 7));
  }
}

TEST_F(PagedBackendCuda, EveryTokenInBf16) {
  for (const std::int64_t d : {128, 512}) {
    Scenario s = make_scenario(d, 2, 4, Basis::kIdentity, {64, 256, 1});
    s.method.quantized = false;
    compare(s, make_call(s, {333, 70}, 77, at::kFloat), kQueryRounding);
  }
}

TEST_F(PagedBackendCuda, SlidingWindow) {
  const Scenario s = make_scenario(128, 2, 4, Basis::kLayer, {16, 40, 1});
  Call call = make_call(s, {200}, 99, at::kFloat);
  call.input.sliding_window = 70;
  compare(s, call, kQueryRounding);
}

// Sequences that end within, at the end of, and at the beginning of a chunk.
TEST_F(PagedBackendCuda, Chunks) {
  for (const std::int64_t chunk : {70, 33, 128}) {
    const Scenario s = make_scenario(128, 2, 4, Basis::kLayer, {16, 40, 1});
    Call call = make_call(s, {200, 140, 141, 1}, 99, at::kFloat);
    call.input.chunk = chunk;
    SCOPED_TRACE(testing::Message() << "chunk " << chunk);
    compare(s, call, kQueryRounding);
  }
}

// Filling at once, in parts, and token by token: the same cache and the same continuation.
TEST_F(PagedBackendCuda, FillingAtOnceIsAppendingTokenByToken) {
  for (const CacheWindows& windows : {CacheWindows{64, 40, 1}, CacheWindows{64, 96, 8}, CacheWindows{0, 16, 4}}) {
    const Scenario s = make_scenario(128, 2, 4, Basis::kHead, windows);
    fill_in_three_ways(s, make_call(s, {501}, 31, at::kFloat), kQueryRounding);
  }
}

TEST_F(PagedBackendCuda, ReleasedPagesAreUsedAgain) {
  const Scenario s = make_scenario(64, 2, 2, Basis::kIdentity, {16, 16, 1});
  const Call call = make_call(s, {300}, 3, at::kFloat);
  PagedAttention attention(s.method, s.model, gpu_), expecting(s.method, s.model, gpu_);
  const at::Tensor first = attention.attend(part(call, call.batch, 0, 300, 0, gpu_));
  expecting.expect(1, 300);
  expecting.append(part(call, {{7}, {100}, {0}}, 0, 100, 0, gpu_));
  EXPECT_EQ(expecting.allocated_bytes(), attention.allocated_bytes()) << "pools are made at once";
  const std::uint64_t bytes = attention.allocated_bytes();
  attention.release(7);
  EXPECT_TRUE(at::equal(first, attention.attend(part(call, call.batch, 0, 300, 0, gpu_))));
  EXPECT_EQ(attention.allocated_bytes(), bytes);
  EXPECT_THROW(attention.attend(part(call, call.batch, 0, 300, 0, gpu_)), std::invalid_argument);
}

TEST_F(PagedBackendCuda, NamesTheLayerAndHeadOfAValueThatIsNotFinite) {
  const Scenario s = make_scenario(64, 2, 2, Basis::kIdentity, {0, 8, 1});
  expect_names_of_what_is_not_finite(s, make_call(s, {40}, 3, at::kFloat));
}

// Queries and keys of several tokens to a block, each head with a matrix of its own.
TEST_F(PagedBackendCuda, AppendedRowsFollowTheMatricesOfTheirHeads) {
  const std::int64_t batch = 37, heads = 12, kv_heads = 3, d = 128, position = 1000;
  const auto bf16 = [&](std::uint64_t seed, at::IntArrayRef sizes) {
    return normal(seed, sizes).to(gpu_, at::kBFloat16);
  };
  const at::Tensor qkv = bf16(1, {batch, heads + 2 * kv_heads, d});
  const at::Tensor rotation =
      std::get<0>(at::linalg_qr(normal(4, {kv_heads, d, d}).to(at::kDouble))).to(at::kFloat).contiguous().to(gpu_);
  const at::Tensor lengths = at::full({batch}, position + 1, at::TensorOptions(at::kInt).device(gpu_));
  const at::Tensor table = at::arange(batch, lengths.options());
  at::Tensor query = at::empty({batch, heads, d}, qkv.options());
  at::Tensor windows =
      at::zeros({batch, kv_heads, kernels::window_page_bytes(d)}, at::TensorOptions(at::kByte).device(gpu_));
  kernels::AppendTokensParams p;
  const auto* base = static_cast<const std::uint16_t*>(qkv.const_data_ptr());
  p.q = base, p.k = base + heads * d, p.v = base + (heads + kv_heads) * d;
  p.q_stride = p.k_stride = p.v_stride = qkv.stride(0);
  p.lengths = lengths.const_data_ptr<std::int32_t>();
  p.query_matrix = p.key_matrix = rotation.const_data_ptr<float>();
  p.query = static_cast<std::uint16_t*>(query.data_ptr());
  p.window_pages = windows.data_ptr<std::uint8_t>(), p.window_table = table.const_data_ptr<std::int32_t>();
  p.tokens = batch, p.query_heads = heads, p.kv_heads = kv_heads, p.head_dim = d, p.matrix_heads = kv_heads;
  p.sink = 0, p.sink_pages = 0, p.ring_pages = 1;
  ASSERT_EQ(kernels::append_tokens(p, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);

  const auto expected = [&](std::int64_t first, std::int64_t count) {
    const at::Tensor x = qkv.narrow(1, first, count).to(at::kFloat);
    const at::Tensor matrices = rotation.repeat_interleave(count / kv_heads, 0);  // [count, d, d]
    return at::bmm(x.transpose(0, 1), matrices).transpose(0, 1);
  };
  EXPECT_LT(difference(query, expected(0, heads)), 4e-3);
  const at::Tensor keys = expected(heads, kv_heads).to(at::kCPU, at::kFloat).contiguous();
  const at::Tensor values = qkv.narrow(1, heads + kv_heads, kv_heads).to(at::kCPU, at::kFloat).contiguous();
  const at::Tensor bytes = windows.to(at::kCPU);
  at::Tensor found_keys = at::empty_like(keys), found_values = at::empty_like(values);
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < kv_heads; ++h) {
      for (int c = 0; c < d; ++c) {
        const auto element = [&](bool value) {
          const int at = kernels::window_offset(d, value, position % kPageTokens, c);
          return static_cast<float>(*reinterpret_cast<const at::BFloat16*>(
              bytes.const_data_ptr<std::uint8_t>() + (b * kv_heads + h) * kernels::window_page_bytes(d) + at));
        };
        found_keys.data_ptr<float>()[(b * kv_heads + h) * d + c] = element(false);
        found_values.data_ptr<float>()[(b * kv_heads + h) * d + c] = element(true);
      }
    }
  }
  EXPECT_LT(difference(found_keys, keys), 4e-3);
  EXPECT_TRUE(at::equal(found_values, values));
}

// No GPU needed: what the fast kernel cannot run stays on the CPU, with the reason.
TEST(DecodeChoice, NamesWhatTheFastKernelIsNotBuiltFor) {
  const at::Device gpu{at::kCUDA, 0};
  const CacheWindows windows{64, 256, 1};
  const auto reason = [&](const Scenario& s, const std::string& text) {
    EXPECT_EQ(decode_note(s.method, s.model, at::kCPU), "");
    EXPECT_THAT(decode_note(s.method, s.model, gpu),
                ::testing::AllOf(::testing::StartsWith("decode path of 'test': on the CPU, because "),
                                 ::testing::HasSubstr(text)));
  };
  Scenario s = make_scenario(128, 2, 4, Basis::kCentered, windows);
  EXPECT_EQ(decode_note(s.method, s.model, gpu), "");
  s.model.logit_soft_cap = true;
  reason(s, "the mean key under a soft cap");
  s.model.logit_soft_cap = false, s.model.sink_logits = true;
  for (LayerTransform& t : s.method.layers) t.key.mean = at::Tensor();
  reason(s, "the mean value beside sink logits");
  s = make_scenario(128, 2, 4, Basis::kIdentity, windows);
  s.method.codes.assign(2, {uniform_code(128, 32), uniform_code(128, 32), {}, {}});
  reason(s, "groups of 32 channels");
  s.method.codes.assign(2, {uniform_code(128, 0, ParamType::kBFloat16), uniform_code(128), {}, {}});
  reason(s, "does not read scales in BF16");
  reason(make_scenario(128, 2, 4, Basis::kIdentity, {64, 256, 3}), "not for 3");
  reason(make_scenario(96, 2, 4, Basis::kIdentity, windows), "head sizes 64, 128, 256 and 512, not for 96");
  reason(make_scenario(128, 2, 17, Basis::kIdentity, windows), "not for 17");
  reason(make_scenario(512, 2, 4, Basis::kIdentity, windows), "does not read head_dim 512 in layout uniform");
  const RowCode wide = band_code(512, {4, 2, 1, 1});
  reason(with_sigma(make_scenario(512, 2, 9, Basis::kIdentity, windows, wide)),
         "1 to 8 query heads on a KV head, not for 9");
  s = with_sigma(make_scenario(512, 2, 8, Basis::kIdentity, windows, wide));
  EXPECT_EQ(decode_note(s.method, s.model, gpu), "");
}

}  // namespace
}  // namespace oscar
