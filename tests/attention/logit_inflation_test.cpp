// What codes of each kind do to the weights of keys, exp(logit), and that the correction of logits takes it back: on
// Gaussian keys, whose logits for a query have variance 1 and whose mean weight is e^(1/2).
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "attention/logit_noise.h"
#include "attention/reconstruction.h"
#include "attention/scenario.h"
#include "rotation/codebook_points.h"
#include "rotation/k_means.h"

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

// A method with codebooks of 64 centroids for each 8 channels, learned from Gaussian rows times `transform`.
KvMethod codebook_method(const CodebookSide& spec, SideTransform transform) {
  const ModelConfig model = model_of_one_head();
  const std::int64_t groups = kWide / 8;
  auto codebook = std::make_shared<Codebook>();
  codebook->before_rope = spec.before_rope, codebook->scale = spec.scale;
  at::Tensor rows = at::matmul(normal(31, {1, 6000, kWide}), transform.forward);
  if (spec.scale != RowScale::kNone) rows = rows / row_scales(rows, spec.scale);
  const TensorPoints points({points_of(rows, groups, false), {}});
  codebook->first = as_centroids(k_means(points, 64, {}, {.seed = 1, .steps = 10}, at::kCPU).view({1, groups, 64, 8}),
                                 codebook->type);
  if (spec.second > 0) {
    const ResidualPoints left(points, codebook->first, at::kCPU);
    codebook->second = as_centroids(k_means(left, spec.second, {}, {.seed = 1, .steps = 10}, at::kCPU), codebook->type)
                           .view({1, groups, spec.second, 8});
  }
  set_errors(*codebook, points, at::kCPU);
  transform.codebook = codebook;
  std::vector<LayerTransform> layers;
  for (std::int64_t i = 0; i < model.layers; ++i) layers.push_back({i, kWide, 1, transform, {}});
  KvMethod method;
  method.id = "test";
  method.coder = codebook_coder(std::move(layers), 0, Encoder::kMinMax, model);
  return method;
}

TEST(LogitInflation, CodebooksOfLearnedMeansDeflateAndTheErrorsOfTheirCellsSayByHowMuch) {
  SideTransform plain, stretched, turned;
  plain.forward = at::eye(kWide).unsqueeze(0);
  turned.forward = orthogonal(7, 1, kWide);
  const at::Tensor stretch = (normal(8, {kWide}) * 0.5).exp();
  stretched.forward = at::diag(stretch).unsqueeze(0), stretched.query_side = at::diag(1 / stretch).unsqueeze(0);
  SideTransform joint = turned;  // neither orthogonal nor diagonal
  joint.forward = (turned.forward * stretch).contiguous(), joint.query_side = (turned.forward / stretch).contiguous();

  struct Case {
    const char* like;
    CodebookSide spec;
    SideTransform transform;
  };
  CodebookSide cq{.channels = 8, .centroids = 64}, tasq, nova, product, residual;
  product = nova = residual = cq;
  cq.before_rope = true;
  tasq = cq, tasq.scale = RowScale::kToken;
  nova.scale = RowScale::kHead;
  residual.second = 16;
  for (const Case& c : {Case{"cq", cq, plain}, Case{"tasq", tasq, stretched}, Case{"nova", nova, joint},
                        Case{"pq1", product, turned}, Case{"rvq1.5", residual, turned}}) {
    const Inflation found = inflation_of(codebook_method(c.spec, c.transform));
    EXPECT_LT(found.coded, -0.05) << c.like << ": what varies within cells is lost";
    EXPECT_LT(std::abs(found.corrected), 0.25 * std::abs(found.coded)) << c.like;
  }
}

}  // namespace
}  // namespace oscar
