#include "verify/layer_error.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/cached_attention.h"
#include "layout/float16.h"
#include "support/bfloat16.h"
#include "support/encoded_row.h"
#include "verify/cache_check.h"

namespace oscar {
namespace {

constexpr std::int64_t kTokens = 90, kHeads = 2, kGroup = 2, kDim = 16;

ModelConfig small_model() {
  ModelConfig model;
  model.layers = 1;
  model.query_heads = kHeads * kGroup;
  model.kv_heads = kHeads;
  model.head_dim = kDim;
  return model;
}

struct Input {
  SequenceBatch batch{{0}, {kTokens}, {0}};
  AttentionInput input;
  explicit Input(std::uint64_t seed) {
    at::Generator g = at::detail::createCPUGenerator(seed);
    const auto options = at::TensorOptions().dtype(at::kFloat);
    input.batch = &batch;
    input.q = at::randn({kTokens, kHeads * kGroup, kDim}, g, options);
    input.k = at::randn({kTokens, kHeads, kDim}, g, options) + 0.5;
    input.v = at::randn({kTokens, kHeads, kDim}, g, options);
    input.scale = 0.25;
  }
};

// Rows of the values 0, 1, 2, 3 are coded without error: s = 1, z = 0.
at::Tensor exact_rows(std::int64_t heads) {
  at::Tensor x = at::empty({kTokens, heads, kDim});
  float* data = x.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < x.numel(); ++i) data[i] = static_cast<float>((i / 3 + i * i) % 4);
  for (std::int64_t i = 0; i < x.numel(); i += kDim) data[i] = 0, data[i + 1] = 3;
  return x;
}

TEST(LayerError, RowsOnTheGridHaveNone) {
  Input in(1);
  in.input.k = exact_rows(kHeads);
  in.input.v = exact_rows(kHeads);
  const KvMethod naive = make_method("naive2", small_model(), nullptr, {4, 8, 1});
  LayerErrorSums sums;
  LayerErrors(in.input, {4, 8, 1}).add_weights(naive, sums);
  EXPECT_GT(sums.total().logit_energy, 0);
  EXPECT_NEAR(sums.result(0).mean.k_logit, 0, 1e-6);
  const KvMethod bf16 = make_method("bf16", small_model(), nullptr, {4, 8, 1});
  const at::Tensor exact = SimulatedPrefillAttention(bf16).attend(in.input);
  OutputErrors(exact, 12, kHeads, {}).add(SimulatedPrefillAttention(naive).attend(in.input), sums);
  EXPECT_GT(sums.total().output_energy, 0);
  EXPECT_NEAR(sums.result(0).mean.attention_output, 0, 1e-6);
}

TEST(LayerError, LogitErrorEqualsThePlainDoubleLoop) {
  Input in(2);
  const CacheWindows windows{4, 8, 1};
  const KvMethod naive = make_method("naive2", small_model(), nullptr, windows);
  LayerErrorSums sums;
  LayerErrors(in.input, {4, 8, 1}).add_weights(naive, sums);

  double error = 0, energy = 0;
  std::vector<float> row(kDim);
  const auto q = in.input.q.accessor<float, 3>(), k = in.input.k.accessor<float, 3>();
  for (std::int64_t p = 13; p < kTokens; ++p) {  // fewer than 64 + 13 queries would be sampled with stride 1
    if ((kTokens - 1 - p) % ((kTokens - 13) / 64) != 0 || (kTokens - 1 - p) / ((kTokens - 13) / 64) >= 64) continue;
    for (std::int64_t h = 0; h < kHeads * kGroup; ++h) {
      std::vector<double> exact, wrong;
      for (std::int64_t j = windows.sink; j <= p - windows.recent; ++j) {
        double e = 0, w = 0;
        for (std::int64_t c = 0; c < kDim; ++c) {
          row[static_cast<std::size_t>(c)] = round_to_bfloat16(k[j][h / kGroup][c]);
        }
        const EncodedRow code = encode_row(row, uniform_code(kDim));
        std::vector<float> decoded(kDim);
        decode_row(code, uniform_code(kDim), decoded);
        for (std::int64_t c = 0; c < kDim; ++c) {
          e += static_cast<double>(q[p][h][c]) * k[j][h / kGroup][c];
          w += static_cast<double>(q[p][h][c]) * decoded[static_cast<std::size_t>(c)];
        }
        exact.push_back(e);
        wrong.push_back(w - e);
      }
      double mean_e = 0, mean_w = 0;
      for (std::size_t i = 0; i < exact.size(); ++i) mean_e += exact[i], mean_w += wrong[i];
      mean_e /= static_cast<double>(exact.size());
      mean_w /= static_cast<double>(exact.size());
      for (std::size_t i = 0; i < exact.size(); ++i) {
        energy += (exact[i] - mean_e) * (exact[i] - mean_e);
        error += (wrong[i] - mean_w) * (wrong[i] - mean_w);
      }
    }
  }
  EXPECT_NEAR(sums.total().logit_energy / energy, 1, 1e-5);
  EXPECT_NEAR(sums.total().logit_error / error, 1, 1e-5);
  EXPECT_GT(sums.result(0).mean.k_logit, 0.1);
  EXPECT_LT(sums.result(0).mean.k_logit, 0.9);
}

// Softmax over the visible keys of one query, stored ones coded from the sink up to the recent window.
struct PlainWeights {
  std::vector<double> exact, stored, exact_logits, stored_logits;  // weights of all keys; logits of the coded ones
};

PlainWeights plain_weights(const AttentionInput& input, std::int64_t p, std::int64_t h, const CacheWindows& windows) {
  const auto q = input.q.accessor<float, 3>(), k = input.k.accessor<float, 3>();
  PlainWeights w;
  std::vector<float> row(kDim);
  for (std::int64_t j = 0; j <= p; ++j) {
    double e = 0, s = 0;
    for (std::int64_t c = 0; c < kDim; ++c) row[static_cast<std::size_t>(c)] = round_to_bfloat16(k[j][h / kGroup][c]);
    const bool coded = j >= windows.sink && j <= p - windows.recent;
    if (coded) decode_row(encode_row(row, uniform_code(kDim)), uniform_code(kDim), row);
    for (std::int64_t c = 0; c < kDim; ++c) {
      e += static_cast<double>(q[p][h][c]) * k[j][h / kGroup][c];
      s += static_cast<double>(q[p][h][c]) * row[static_cast<std::size_t>(c)];
    }
    w.exact.push_back(std::exp(input.scale * e));
    w.stored.push_back(std::exp(input.scale * s));
    if (coded) w.exact_logits.push_back(e), w.stored_logits.push_back(s);
  }
  for (std::vector<double>* list : {&w.exact, &w.stored}) {
    double sum = 0;
    for (const double x : *list) sum += x;
    for (double& x : *list) x /= sum;
  }
  return w;
}

void center(std::vector<double>& x) {
  double mean = 0;
  for (const double v : x) mean += v / static_cast<double>(x.size());
  for (double& v : x) v -= mean;
}

TEST(LayerError, WeightsAndCorrelationEqualThePlainDoubleLoop) {
  Input in(8);
  const CacheWindows windows{4, 8, 1};
  const KvMethod naive = make_method("naive2", small_model(), nullptr, windows);
  LayerErrorSums sums;
  LayerErrors(in.input, windows).add_weights(naive, sums);
  double kl = 0, sink = 0, recent = 0, cross = 0, energy = 0, stored = 0, count = 0;
  const std::int64_t first = windows.sink + windows.recent + 1;
  for (std::int64_t p = kTokens - 1, n = 0; p >= first && n < 64; --p, ++n) {  // stride 1: 77 queries, the last 64
    for (std::int64_t h = 0; h < kHeads * kGroup; ++h, ++count) {
      PlainWeights w = plain_weights(in.input, p, h, windows);
      for (std::int64_t j = 0; j <= p; ++j) {
        const double e = w.exact[static_cast<std::size_t>(j)], s = w.stored[static_cast<std::size_t>(j)];
        kl += e * std::log(e / s);
        if (j < windows.sink) sink += e - s;
        if (j >= windows.sink && j > p - windows.recent) recent += e - s;
      }
      center(w.exact_logits), center(w.stored_logits);
      for (std::size_t i = 0; i < w.exact_logits.size(); ++i) {
        cross += w.exact_logits[i] * w.stored_logits[i];
        energy += w.exact_logits[i] * w.exact_logits[i], stored += w.stored_logits[i] * w.stored_logits[i];
      }
    }
  }
  const HeadError e = sums.result(0).mean;
  EXPECT_EQ(sums.total().queries, count);
  EXPECT_NEAR(e.attention_kl / (kl / count), 1, 2e-3);  // the exact keys enter unrounded, the window's as BF16
  EXPECT_NEAR(e.sink_mass_lost, sink / count, 1e-4);
  EXPECT_NEAR(e.recent_mass_lost, recent / count, 1e-4);
  EXPECT_NEAR(e.k_logit_correlation, cross / std::sqrt(energy * stored), 1e-5);
  EXPECT_GT(std::abs(sink / count) + std::abs(recent / count), 1e-3);  // something moved
  EXPECT_LT(e.k_logit_correlation, 0.99);
}

TEST(LayerError, AConstantShiftOfTheKeysIsNoError) {
  // Keys stored less their mean: every logit of a query moves by the same amount, which softmax does not see.
  Input in(3);
  in.input.k = exact_rows(kHeads);
  KvMethod method = make_method("hadamard2", small_model(), nullptr, {4, 8, 1});
  method.layers[0].key.forward = at::eye(kDim).unsqueeze(0);
  method.layers[0].key.mean = at::full({kHeads, kDim}, 0.5);
  LayerErrorSums sums;
  LayerErrors(in.input, {4, 8, 1}).add_weights(method, sums);
  EXPECT_NEAR(sums.result(0).mean.k_logit, 0, 1e-5);
}

TEST(LayerError, HalvedOutputsAreHalfWrong) {
  LayerErrorSums sums;
  const at::Tensor o = at::randn({20, 4, kDim});
  OutputErrors(o, 5, 2, {}).add(0.5 * o, sums);
  EXPECT_NEAR(sums.result(0).mean.attention_output, 0.5, 1e-6);
  OutputErrors(o, 30, 2, {}).add(o, sums);  // nothing behind the last token
  EXPECT_NEAR(sums.result(0).mean.attention_output, 0.5, 1e-6);
}

TEST(LayerError, ProjectionSeesWhatItKeeps) {
  // W_O that reads one channel alone: an error in another channel is none behind it.
  LayerErrorSums sums;
  const at::Tensor o = at::randn({20, 4, kDim});
  at::Tensor wrong = o.clone(), projection = at::zeros({3, 4 * kDim});
  projection[1][5] = 2.0;
  wrong.select(2, 7).add_(1.0);
  OutputErrors(o, 0, 2, projection).add(wrong, sums);
  EXPECT_GT(sums.result(0).mean.attention_output, 0.1);
  EXPECT_NEAR(sums.result(0).projected_output, 0.0, 1e-6);
}

TEST(LayerError, WeightsMoveOffTheSinkWhenKeysGrow) {
  // All keys equal, so weights are uniform; then coded keys are turned toward the queries: mass leaves both windows.
  Input in(6);
  in.input.q = at::ones({kTokens, kHeads * kGroup, kDim});
  in.input.k = at::zeros({kTokens, kHeads, kDim});
  KvMethod method = make_method("hadamard2", small_model(), nullptr, {4, 8, 1});
  LayerErrorSums none, some;
  LayerErrors(in.input, {4, 8, 1}).add_weights(method, none);
  EXPECT_NEAR(none.result(0).mean.attention_kl, 0.0, 1e-9);
  EXPECT_NEAR(none.result(0).mean.sink_mass_lost, 0.0, 1e-9);
  in.input.k.select(2, 3).fill_(1.0f);  // one channel: min/max codes of a one-hot row are exact, others follow below
  in.input.k.narrow(2, 4, 12).uniform_(0.0, 0.4);
  LayerErrors(in.input, {4, 8, 1}).add_weights(method, some);
  const HeadError e = some.result(0).mean;
  EXPECT_GT(e.attention_kl, 0.0);
  EXPECT_LT(std::abs(e.sink_mass_lost), 1.0);
  EXPECT_LE(e.k_logit_correlation, 1.0);
  EXPECT_EQ(some.result(0).heads.size(), static_cast<std::size_t>(kHeads));
}

TEST(CacheCheck, AgreesOnEveryMethod) {
  for (const char* id : {"bf16", "naive2", "hadamard2"}) {
    Input in(4);
    const KvMethod method = make_method(id, small_model(), nullptr, {4, 8, 1});
    CacheChecker checker(method, small_model());
    checker.check_layer(layer_to_check(in.input, SimulatedPrefillAttention(method).attend(in.input)));
    const CacheCheck check = checker.result();
    EXPECT_EQ(check.differing, 0) << id;
    EXPECT_EQ(check.rows, method.quantized ? 2 * kHeads * (kTokens - 12) : 0) << id;
    EXPECT_EQ(check.read, check.rows) << id;
    EXPECT_EQ(check.misread, 0) << id;
    EXPECT_LT(check.reader_error, 1e-5) << id;
    EXPECT_GT(check.allocated_bytes, 0u);
  }
}

TEST(CacheCheck, ManyRowsAreComparedInTurns) {
  EXPECT_EQ(compared_pages(100, 7).step, 1);
  EXPECT_EQ(compared_pages(100, 7).first, 0);
  std::vector<int> seen(12);  // pages of a side
  for (std::int64_t place = 0; place < 8; ++place) {
    const PageSample sample = compared_pages(401, place, 100);
    EXPECT_EQ(sample.step, 5) << "no more than 100 rows of 401";
    for (std::int64_t page = sample.first; page < std::ssize(seen); page += sample.step) {
      ++seen[static_cast<std::size_t>(page)];
    }
  }
  EXPECT_GE(*std::min_element(seen.begin(), seen.end()), 1) << "no page is left out everywhere";
}

TEST(CacheCheck, ShowsAReaderThatDisagrees) {
  Input in(5);
  const KvMethod method = make_method("naive2", small_model(), nullptr, {4, 8, 1});
  CacheChecker checker(method, small_model());
  const KvMethod other = make_method("hadamard2", small_model(), nullptr, {4, 8, 1});
  checker.check_layer(layer_to_check(in.input, SimulatedPrefillAttention(other).attend(in.input)));
  EXPECT_GT(checker.result().reader_error, 1e-2);
}

TEST(CacheCheck, RoundingOfBf16IsNoFault) {
  // Keys with means of hundreds, as in layer 0 of Qwen2.5-Coder-1.5B: rounding restored keys to BF16 moves outputs far.
  Input in(5);
  in.input.q.select(2, 1).add_(6.0), in.input.k.select(2, 1).mul_(3.0).add_(200.0);
  for (at::Tensor* x : {&in.input.q, &in.input.k, &in.input.v}) *x = x->to(at::kBFloat16);
  AttentionInput restored = in.input;
  for (at::Tensor* x : {&restored.q, &restored.k, &restored.v}) *x = x->to(at::kFloat);
  const at::Tensor exact = FullAttention().attend(restored);
  restored.k = restored.k.mul(0.7).to(at::kBFloat16).to(at::kFloat).div_(0.7);  // numbers of BF16 are 1 apart there
  const at::Tensor rounded = FullAttention().attend(restored);
  EXPECT_GT((rounded - exact).norm().item<double>(), 0.03 * exact.norm().item<double>());
  const KvMethod plain = make_method("bf16", small_model(), nullptr, {4, 8, 1});
  const auto error = [&](const AttentionInput& input, const at::Tensor& prefill) {
    CacheChecker checker(plain, small_model());
    checker.check_layer(layer_to_check(input, prefill));
    return checker.result().reader_error;
  };
  EXPECT_LT(error(in.input, rounded), 5e-3) << "compared without prefill's rounding; outputs are BF16";
}

}  // namespace
}  // namespace oscar
