// What codes of each kind do to the weights of keys, exp(logit), and that the correction of logits takes it back: on
// Gaussian keys, whose logits for a query have variance 1 and whose mean weight is e^(1/2).
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "attention/logit_noise.h"
#include "attention/reconstruction.h"
#include "attention/scenario.h"

namespace oscar {
namespace {

constexpr std::int64_t kWide = 64, kTokens = 3000, kLayer = 4, kQueries = 32;

ModelConfig model_of_one_head() {
  ModelConfig m;
  m.layers = 8, m.kv_heads = 1, m.query_heads = 1, m.head_dim = kWide;
  m.rope.theta = 10000.0, m.max_position = kTokens;
  return m;
}

struct Inflation {
  double coded, corrected;  // of the logarithm of the mean weight
};

Inflation inflation_of(KvMethod method) {
  method.logit_correction = true;
  const at::Tensor k = normal(21, {kTokens, 1, kWide}), raw = normal(22, {kQueries, 1, kWide});
  const at::Tensor q = raw / raw.norm(2, 2, true);
  const CachedRows keys = decoded_rows(method, kLayer, Side::kKey, k);
  const at::Tensor sees = at::arange(128, kTokens - 64);  // coded in every method
  const auto logits = [&](const at::Tensor& rows) {
    return at::mm(rows[0].index_select(0, sees).to(at::kDouble), q.select(1, 0).t().to(at::kDouble));
  };
  const auto log_mean = [](const at::Tensor& x) { return x.exp().mean(0).log().mean().item<double>(); };
  const at::Tensor coded = logits(keys.coded);
  const double exact = log_mean(logits(keys.plain));
  Inflation found{log_mean(coded) - exact, log_mean(coded) - exact};
  if (!keys.noise.defined()) return found;
  const at::Tensor asked = noise_queries(method, kLayer, q, keys.noise.size(2), 1.0).select(1, 0).to(at::kDouble);
  const at::Tensor lower = at::mm(keys.noise[0].index_select(0, sees).to(at::kDouble), asked.t());
  found.corrected = log_mean(coded + lower) - exact;
  return found;
}

struct Known {
  const char* id;
  double inflation;  // of Gaussian keys with 64 channels
};

TEST(LogitInflation, IsHalfTheVarianceThatCodesAdd) {
  const ModelConfig model = model_of_one_head();
  for (const Known& known : {Known{"fp8", 0.0004}, Known{"quarot2", 0.080}, Known{"turboquant2", -0.058},
                             Known{"turboquant2.5", -0.040}, Known{"nsn", 0.247}, Known{"nsn2", 0.054}}) {
    const Inflation found = inflation_of(make_method(known.id, model, nullptr, {}));
    EXPECT_NEAR(found.coded, known.inflation, 0.003 + 0.06 * std::abs(known.inflation)) << known.id;
    // Four levels of a row do not spread errors quite evenly, and 16 channels are not quite Gaussian.
    EXPECT_LT(std::abs(found.corrected), 0.003 + 0.2 * std::abs(known.inflation)) << known.id;
  }
}

TEST(LogitInflation, CodesThatKeepTheNormOfKeysHaveNone) {
  const KvMethod method = make_method("turboquant_3bit_nc", model_of_one_head(), nullptr, {});
  EXPECT_EQ(method.coder->key_errors(), KeyErrors::kNone);
  const at::Tensor rows = normal(3, {64, 1, kWide});
  EXPECT_FALSE(method.coder->code(method, kLayer, Side::kKey, rows, true).variance.defined());
  EXPECT_LT(std::abs(inflation_of(method).coded), 0.003);
}

}  // namespace
}  // namespace oscar
