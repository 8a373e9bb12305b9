// RMSNorm and the gated MLP: known answers.
#include "model/layer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

namespace oscar {
namespace {

at::Tensor random(at::IntArrayRef shape, std::uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::TensorOptions().dtype(at::kFloat));
}

// Whole numbers that bfloat16 holds, so that both types give the same; the bias is added in its own type.
TEST(Product, IsComputedInTheTypeOfTheWeight) {
  const at::Tensor x = random({3, 8}, 11).mul_(4).round_(), weight = random({5, 8}, 12).mul_(4).round_();
  const at::Tensor bias = at::full({5}, 1.0f / 1024.0f);
  const at::Tensor expected = at::matmul(x, weight.t()), narrow = weight.to(at::kBFloat16);
  EXPECT_TRUE(at::equal(product(x, weight, {}, at::kFloat), expected));
  EXPECT_TRUE(at::equal(product(x, narrow, {}, at::kFloat), expected.to(at::kBFloat16).to(at::kFloat)));
  EXPECT_TRUE(at::equal(product(x, narrow, bias, at::kFloat), expected.to(at::kBFloat16).to(at::kFloat) + bias));
  EXPECT_EQ(product(x, narrow, bias, at::kBFloat16).scalar_type(), at::kBFloat16);
  // Inputs are rounded to that type.
  const at::Tensor rest = at::full({1, 8}, 1.0f + 1.0f / 1024.0f);
  EXPECT_TRUE(at::equal(product(rest, narrow, {}, at::kFloat), product(at::ones({1, 8}), narrow, {}, at::kFloat)));
}

// The MLP with narrow weights, from and to FP32, biases included.
TEST(GatedMlp, TakesWeightsOfANarrowerType) {
  const at::Tensor x = random({7, 16}, 13);
  LayerWeights wide;
  wide.gate = random({24, 16}, 14).mul_(0.1), wide.up = random({24, 16}, 15).mul_(0.1);
  wide.down = random({16, 24}, 16).mul_(0.1), wide.gate_bias = random({24}, 17);
  LayerWeights narrow = wide;
  for (at::Tensor* w : {&narrow.gate, &narrow.up, &narrow.down}) *w = w->to(at::kBFloat16);
  const at::Tensor expected = gated_mlp(x, wide), found = gated_mlp(x, narrow);
  EXPECT_EQ(found.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::allclose(found, expected, 0.0, 0.02 * expected.abs().max().item<double>()));
  EXPECT_FALSE(at::equal(found, expected));
}

TEST(RmsNorm, ConstantBecomesTheWeight) {
  const at::Tensor weight = random({40}, 1);
  EXPECT_TRUE(at::allclose(rms_norm(at::full({3, 40}, 7.0f), weight, 0.0), weight.expand({3, 40}), 1e-6));
  EXPECT_TRUE(at::allclose(rms_norm(at::full({3, 40}, -7.0f), weight, 0.0), -weight.expand({3, 40}), 1e-6));
}

TEST(RmsNorm, ScaleOfTheInputDoesNotMatterAndZeroStaysZero) {
  const at::Tensor x = random({5, 2, 48}, 2), weight = at::ones({48});
  EXPECT_TRUE(at::allclose(rms_norm(x, weight, 0.0), rms_norm(x * 64, weight, 0.0), 1e-6, 1e-7));
  EXPECT_TRUE(at::equal(rms_norm(at::zeros({2, 48}), weight, 1e-6), at::zeros({2, 48})));
  EXPECT_NEAR(rms_norm(x, weight, 0.0).square().mean().item<double>(), 1.0, 1e-6);
}

TEST(RmsNorm, EpsilonIsAddedToTheMeanSquare) {
  const at::Tensor y = rms_norm(at::full({1, 4}, 2.0f), at::ones({4}), 5.0);
  EXPECT_NEAR(y[0][0].item<double>(), 2.0 / 3.0, 1e-6);
}

// The normalized value is rounded to the activation dtype before the weight is applied.
// A GPU sums in another order, so a rare BF16 result is its neighbor.
TEST(RmsNorm, IsTheSameOnAGpu) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = random({37, 3, 96}, 18).mul_(3.0).to(type), weight = random({96}, 19).to(type);
    for (const NormKind kind : {NormKind::kRounded, NormKind::kWide, NormKind::kOnePlus, NormKind::kCentered}) {
      for (const at::Tensor& w : {weight, at::Tensor()}) {
        const at::Tensor expected = rms_norm(x, w, 1e-5, kind);
        const at::Tensor found = rms_norm(x.cuda(), w.defined() ? w.cuda() : w, 1e-5, kind).cpu();
        ASSERT_EQ(found.scalar_type(), type);
        EXPECT_TRUE(at::allclose(found, expected, type == at::kFloat ? 1e-5 : 1e-2, 1e-6));
        EXPECT_GT(found.eq(expected).to(at::kFloat).mean().item<float>(), type == at::kFloat ? 0.0f : 0.99f);
      }
    }
  }
}

TEST(RmsNorm, RoundsBeforeTheWeight) {
  const at::Tensor x = random({64, 48}, 3).to(at::kBFloat16), weight = random({48}, 4).to(at::kBFloat16);
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor normed = (wide * at::rsqrt(wide.pow(2).mean(-1, true) + 1e-6)).to(at::kBFloat16);
  EXPECT_TRUE(at::equal(rms_norm(x, weight, 1e-6), normed * weight));
}

TEST(RmsNorm, KindsDifferInWhereTheWeightIsApplied) {
  const at::Tensor x = random({64, 48}, 5).to(at::kBFloat16), weight = random({48}, 6).to(at::kBFloat16);
  const at::Tensor wide = x.to(at::kFloat), normed = wide * at::rsqrt(wide.pow(2).mean(-1, true) + 1e-6);
  const at::Tensor weighted = (normed * weight.to(at::kFloat)).to(at::kBFloat16);
  EXPECT_TRUE(at::equal(rms_norm(x, weight, 1e-6, NormKind::kWide), weighted));
  EXPECT_FALSE(at::equal(rms_norm(x, weight, 1e-6, NormKind::kRounded), weighted));
  EXPECT_TRUE(at::equal(rms_norm(x, weight, 1e-6, NormKind::kOnePlus),
                        (normed * (1 + weight.to(at::kFloat))).to(at::kBFloat16)));
}

// LayerNorm: a constant added to all channels changes nothing.
TEST(RmsNorm, CenteredTakesTheMeanAway) {
  const at::Tensor x = random({64, 48}, 7), weight = random({48}, 8);
  const at::Tensor expected = at::layer_norm(x, {48}, weight, {}, 1e-5);
  EXPECT_TRUE(at::allclose(rms_norm(x, weight, 1e-5, NormKind::kCentered), expected, 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(rms_norm(x + 3.0, weight, 1e-5, NormKind::kCentered), expected, 1e-4, 1e-5));
  EXPECT_FALSE(at::allclose(rms_norm(x + 3.0, weight, 1e-5), expected, 1e-1, 1e-1));
}

// Attention whose output is what it reads as v, and which remembers the rest.
class Echo : public Attention {
 public:
  at::Tensor attend(const AttentionInput& input) override {
    seen = input;
    return input.v;
  }
  void added(const AttentionInput&, const at::Tensor& residual, const at::Tensor&) override {
    stream = residual.clone();
  }
  AttentionInput seen;
  at::Tensor stream;
};

// hidden 4, two heads of 2 channels, every projection the identity.
struct PlainLayer {
  ModelConfig config;
  LayerWeights weights;
  SequenceBatch batch{{0}, {3}, {0}};
  at::Tensor x = random({3, 4}, 20);

  PlainLayer() {
    config.hidden = 4, config.intermediate = 4, config.query_heads = config.kv_heads = 2, config.head_dim = 2;
    config.rms_eps = 0.0;
    for (at::Tensor* w : {&weights.q, &weights.k, &weights.v, &weights.o}) *w = at::eye(4);
    weights.gate = random({4, 4}, 21), weights.up = random({4, 4}, 22), weights.down = random({4, 4}, 23);
    weights.input_norm = random({4}, 24);
  }
  at::Tensor run(Echo& echo, const Pieces& pieces = {}) const {
    const RopeTable table = rope_table(rope_frequencies(config.rope, 2, 16), batch, at::kFloat, at::kCPU);
    return decoder_layer(config, 0, weights, x, batch, table, echo, pieces);
  }
};

TEST(DecoderLayer, ParallelBranchesReadOneNorm) {
  const PlainLayer layer;
  Echo echo;
  const at::Tensor normed = rms_norm(layer.x, layer.weights.input_norm, 0.0);
  const at::Tensor out = layer.run(echo, {.parallel = true});
  EXPECT_TRUE(at::allclose(out, layer.x + normed + gated_mlp(normed, layer.weights), 1e-5, 1e-6));
  EXPECT_TRUE(at::equal(echo.stream, out));
  const at::Tensor after = layer.x + normed;  // one after the other
  EXPECT_TRUE(at::allclose(layer.run(echo), after + gated_mlp(after, layer.weights), 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(echo.stream, after, 1e-6));
}

TEST(DecoderLayer, BranchesAreScaled) {
  PlainLayer layer;
  layer.config.residual_scale = 0.25;
  Echo echo;
  const at::Tensor after = layer.x + 0.25 * rms_norm(layer.x, layer.weights.input_norm, 0.0);
  EXPECT_TRUE(at::allclose(layer.run(echo), after + 0.25 * gated_mlp(after, layer.weights), 1e-5, 1e-6));
}

// With equal weights of a pair, norm and RoPE commute; with others the order matters.
TEST(DecoderLayer, NormBeforeOrAfterRope) {
  PlainLayer layer;
  Echo before, after;
  layer.weights.q_norm = at::tensor({2.0f, 0.5f}), layer.weights.k_norm = at::tensor({3.0f, 3.0f});
  layer.run(before);
  layer.config.norm_after_rope = true;
  layer.run(after);
  EXPECT_TRUE(at::allclose(before.seen.k, after.seen.k, 1e-5, 1e-6));
  EXPECT_FALSE(at::allclose(before.seen.q, after.seen.q, 1e-2, 1e-2));
  const at::Tensor unweighted = after.seen.q / layer.weights.q_norm;
  EXPECT_TRUE(at::allclose(unweighted.square().mean(-1), at::ones({3, 2}), 1e-5));
}

// Answers some queries by answering all.
class SomeQueries : public Attention {
 public:
  at::Tensor attend(const AttentionInput& input) override {
    EXPECT_EQ(input.k.size(0), 3);
    if (!input.asked.defined()) return full_.attend(input);
    EXPECT_EQ(input.q.size(0), input.asked.size(0));
    return full_.attend(with_all_queries(input)).index_select(0, input.asked);
  }
  void added(const AttentionInput&, const at::Tensor& residual, const at::Tensor&) override { rows = residual.size(0); }
  std::int64_t rows = 0;

 private:
  FullAttention full_;
};

// Rows that nobody asked for give keys and values alone.
TEST(DecoderLayer, AskedRowsAreThoseOfTheWhole) {
  const at::Tensor asked = at::tensor({0, 2}, at::kLong);
  for (const int variant : {0, 1, 2, 3}) {
    PlainLayer layer;
    layer.weights.q_norm = random({2}, 30), layer.weights.k_norm = random({2}, 31);
    layer.weights.mlp_norm = random({4}, 32);
    layer.config.norm_after_rope = variant == 1;
    if (variant == 2) layer.weights.output_gate = random({4, 4}, 33);
    const Pieces pieces{.parallel = variant == 3};
    RopeTable table = rope_table(rope_frequencies(layer.config.rope, 2, 16), layer.batch, at::kFloat, at::kCPU);
    if (variant == 0) table.query_scale = at::tensor({1.0f, 2.0f, 3.0f}).view({3, 1, 1});
    SomeQueries attention;
    const auto run = [&](const at::Tensor& rows) {
      return decoder_layer(layer.config, 0, layer.weights, layer.x, layer.batch, table, attention, pieces, rows);
    };
    const at::Tensor whole = run({});
    EXPECT_EQ(attention.rows, 3);
    const at::Tensor some = run(asked);
    EXPECT_EQ(attention.rows, 2);
    EXPECT_TRUE(at::allclose(some, whole.index_select(0, asked), 1e-5, 1e-6)) << variant;
  }
}

TEST(DecoderLayer, AttentionThatAnswersAllQueriesRefusesSome) {
  const PlainLayer layer;
  FullAttention attention;
  const RopeTable table = rope_table(rope_frequencies(layer.config.rope, 2, 16), layer.batch, at::kFloat, at::kCPU);
  EXPECT_THROW(decoder_layer(layer.config, 0, layer.weights, layer.x, layer.batch, table, attention, {},
                             at::tensor({1}, at::kLong)),
               std::invalid_argument);
}

LayerWeights mlp_weights(std::int64_t hidden, std::int64_t intermediate, bool bias) {
  LayerWeights w;
  w.gate = random({intermediate, hidden}, 10);
  w.up = random({intermediate, hidden}, 11);
  w.down = random({hidden, intermediate}, 12);
  if (bias) {
    w.gate_bias = random({intermediate}, 13);
    w.up_bias = random({intermediate}, 14);
    w.down_bias = random({hidden}, 15);
  }
  return w;
}

TEST(GatedMlp, ScalarCase) {
  LayerWeights w;
  w.gate = at::full({1, 1}, 2.0f);
  w.up = at::full({1, 1}, 3.0f);
  w.down = at::full({1, 1}, 5.0f);
  const double gate = 2.0 * 0.7, expected = 5.0 * (gate / (1.0 + std::exp(-gate))) * (3.0 * 0.7);
  EXPECT_NEAR(gated_mlp(at::full({1, 1}, 0.7f), w).item<double>(), expected, 1e-5);
}

TEST(GatedMlp, BlocksOfTokensEqualTheWhole) {
  for (const bool bias : {false, true}) {
    const LayerWeights w = mlp_weights(12, 20, bias);
    const at::Tensor x = random({5000, 12}, 16), y = gated_mlp(x, w);
    for (const std::int64_t start : {0, 4090, 4996}) {
      const at::Tensor part = gated_mlp(x.narrow(0, start, 4), w);
      EXPECT_TRUE(at::allclose(y.narrow(0, start, 4), part, 1e-5, 1e-4));
    }
  }
}

}  // namespace
}  // namespace oscar
