// Labels and gradients of the KL metric on a made checkpoint: known answers, and the KL itself by finite differences.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cmath>

#include "model/tiny_checkpoint.h"
#include "statistics/layer_gradient.h"
#include "statistics/output_gradient.h"
#include "support/temp_directory.h"

namespace oscar {
namespace {

constexpr std::int64_t kTokens = 13, kVocabulary = 31;
const FarPairs kPairs{2, 4, true};

at::Tensor places_of(std::int64_t n) {
  std::vector<std::int64_t> places;
  for (std::int64_t i = 0; i < n; ++i) places.push_back(ProbeSigns::place(1, "set", 2, i));
  return at::tensor(at::ArrayRef<std::int64_t>(places), at::kLong);
}

TEST(FisherProbe, SignsBeginAtThePlaceOfTheToken) {
  const ProbeSigns signs(3, 150, at::kCPU);
  const at::Tensor found = signs.at_places(at::tensor({7, 20, (1 << 20) - 1}, at::kLong));
  EXPECT_EQ(found.sizes(), at::IntArrayRef({3, 150}));
  EXPECT_TRUE(found.abs().eq(1.0).all().item<bool>());
  EXPECT_TRUE(found[0].slice(0, 13).equal(found[1].slice(0, 0, 137)));  // one table
  EXPECT_LT(found.mean().abs().item<double>(), 0.15);
  EXPECT_FALSE(found.equal(ProbeSigns(4, 150, at::kCPU).at_places(at::tensor({7, 20, (1 << 20) - 1}, at::kLong))));
  EXPECT_NE(ProbeSigns::place(1, "set", 2, 3), ProbeSigns::place(2, "set", 2, 3));
  EXPECT_NE(ProbeSigns::place(1, "set", 2, 3), ProbeSigns::place(1, "other", 2, 3));
  EXPECT_NE(ProbeSigns::place(1, "set", 2, 3), ProbeSigns::place(1, "set", 3, 3));
}

// Over many tokens the second moment is the Fisher matrix of the logits, and the mean is zero.
TEST(FisherProbe, HasTheFisherMatrix) {
  constexpr std::int64_t kTokensOfOne = 40000;
  at::manual_seed(1);
  const at::Tensor p = at::softmax(at::randn({8}) * 2.0, -1);
  const at::Tensor z =
      fisher_probe(p.expand({kTokensOfOne, 8}), ProbeSigns(5, 8, at::kCPU).at_places(places_of(kTokensOfOne)));
  const at::Tensor wide = z.to(at::kDouble), exact = p.to(at::kDouble);
  const at::Tensor expected = exact.diag() - exact.outer(exact);
  EXPECT_LT((wide.t().matmul(wide) / kTokensOfOne - expected).abs().max().item<double>(), 0.005);
  EXPECT_LT(wide.mean(0).abs().max().item<double>(), 0.01);
  EXPECT_LT(wide.sum(-1).abs().max().item<double>(), 1e-5);  // probabilities sum to one
}

// In one layer far pairs read keys and values with something added.
class ShiftedFar : public Attention {
 public:
  std::int64_t layer = -1;
  at::Tensor key, value;  // [T, Hkv, d]
  at::Tensor attend(const AttentionInput& input) override {
    if (input.layer != layer) return full_.attend(input);
    const std::int64_t tokens = input.q.size(0), group = input.q.size(1) / input.k.size(1);
    const auto wide = [&](const at::Tensor& x) {
      return x.to(at::kDouble).repeat_interleave(x.size(1) == input.q.size(1) ? 1 : group, 1).transpose(0, 1);
    };
    const at::Tensor i = at::arange(tokens).unsqueeze(1), j = at::arange(tokens).unsqueeze(0);
    const at::Tensor far = (j >= kPairs.sink).logical_and(j <= i - kPairs.recent);
    const at::Tensor q = wide(input.q), k = wide(input.k), v = wide(input.v);
    const at::Tensor s =
        at::where(far, at::matmul(q, (k + wide(key)).transpose(1, 2)), at::matmul(q, k.transpose(1, 2)));
    const at::Tensor p = at::softmax((s * input.scale).masked_fill(j > i, -INFINITY), -1);
    return (at::matmul(p, v) + at::matmul(p * far, wide(value))).transpose(0, 1).to(input.q.scalar_type()).contiguous();
  }

 private:
  FullAttention full_;
};

class KlGradient : public testing::Test {
 protected:
  KlGradient() : checkpoint_(TinyCheckpoint().write(dir_.path())), decoder_(checkpoint_, {}) {
    for (std::int64_t t = 0; t < kTokens; ++t) ids_.push_back(static_cast<std::int32_t>((7 * t + 3) % kVocabulary));
    FullAttention attention;
    hidden_.push_back(decoder_.embed(ids_));
    for (std::int64_t layer = 0; layer < 3; ++layer) {
      hidden_.push_back(decoder_.run_layer(layer, hidden_.back(), batch_, attention));
    }
  }

  at::Tensor log_probabilities(Attention& attention) {
    const c10::AutoGradMode off(false);
    return at::log_softmax(decoder_.logits(decoder_.forward(ids_, batch_, attention)).to(at::kDouble), -1);
  }

  // d log p(label at position t) / d far keys and values of `layer`.
  LayerGradient gradient(std::int64_t layer, std::int64_t t, std::int64_t label) {
    at::Tensor g = at::zeros({kTokens, 24});
    const at::Tensor last = hidden_[3].narrow(0, t, 1);
    g.narrow(0, t, 1).copy_(label_gradient(decoder_, last, at::tensor({label}, at::kLong)));
    LayerGradient out;
    for (std::int64_t l = 2; l >= layer; --l) {
      out = layer_gradient(decoder_, l, hidden_[static_cast<std::size_t>(l)], batch_, g, kPairs);
      g = out.hidden;
    }
    return out;
  }

  TempDirectory dir_;
  Checkpoint checkpoint_;
  Decoder decoder_;
  SequenceBatch batch_{{0}, {kTokens}, {0}};
  std::vector<std::int32_t> ids_;
  std::vector<at::Tensor> hidden_;  // that enter each layer, and the last one's output
};

// Fisher's identity, with the expectation over labels taken exactly: half of e F e^T is the KL.
TEST_F(KlGradient, MetricIsTheKlOfSmallErrors) {
  FullAttention exact;
  const at::Tensor log_p = log_probabilities(exact), p = log_p.exp();
  at::manual_seed(9);
  for (const std::int64_t layer : {0, 2}) {
    const at::Tensor e = at::randn({kTokens, 2, 16}) * 0.02;
    double predicted[2] = {0.0, 0.0};  // of keys and of values
    for (std::int64_t t = kPairs.sink + kPairs.recent; t < kTokens; ++t) {
      for (std::int64_t y = 0; y < kVocabulary; ++y) {
        const LayerGradient g = gradient(layer, t, y);
        const double key = (g.far_k * e).sum().item<double>(), value = (g.far_v * e).sum().item<double>();
        predicted[0] += 0.5 * p[t][y].item<double>() * key * key;
        predicted[1] += 0.5 * p[t][y].item<double>() * value * value;
      }
    }
    for (const bool key : {true, false}) {
      double measured = 0.0;
      for (const double sign : {1.0, -1.0}) {  // the third order cancels
        ShiftedFar shifted;
        shifted.layer = layer;
        shifted.key = key ? e * sign : at::zeros_like(e);
        shifted.value = key ? at::zeros_like(e) : e * sign;
        measured += 0.5 * (p * (log_p - log_probabilities(shifted))).sum().item<double>();
      }
      EXPECT_GT(measured, 1e-7);
      EXPECT_NEAR(predicted[key ? 0 : 1] / measured, 1.0, 0.02) << "layer " << layer << (key ? " keys" : " values");
    }
  }
}

TEST_F(KlGradient, TokensThatNoFarQueryReadsHaveNone) {
  const LayerGradient g = gradient(0, kTokens - 1, 5);
  const at::Tensor size = g.far_k.abs().sum({1, 2}) + g.far_v.abs().sum({1, 2});
  for (std::int64_t j = 0; j < kTokens; ++j) {
    const bool far = j >= kPairs.sink && j <= kTokens - 1 - kPairs.recent;
    EXPECT_EQ(size[j].item<double>() > 0.0, far) << j;
  }
}

// The weights' gradient through all pairs, against the loss itself with changed weights.
TEST_F(KlGradient, WeightsOfKeysAndValues) {
  const at::Tensor labels = at::tensor(at::ArrayRef<std::int32_t>(ids_), at::kInt).to(at::kLong).slice(0, 1);
  const auto loss = [&] {
    FullAttention exact;
    return log_probabilities(exact).narrow(0, 0, kTokens - 1).gather(1, labels.unsqueeze(1)).sum().item<double>();
  };
  at::Tensor g = at::zeros({kTokens, 24});
  g.narrow(0, 0, kTokens - 1).copy_(label_gradient(decoder_, hidden_[3].narrow(0, 0, kTokens - 1), labels));
  at::manual_seed(4);
  for (std::int64_t layer = 2; layer >= 0; --layer) {
    const LayerGradient found =
        layer_gradient(decoder_, layer, hidden_[static_cast<std::size_t>(layer)], batch_, g, kPairs, {.weights = true});
    const LayerWeights& weights = decoder_.layer_weights(layer);
    for (const bool key : {true, false}) {
      at::Tensor weight = key ? weights.k : weights.v;
      EXPECT_FALSE(weight.requires_grad());
      const at::Tensor gradient = key ? found.weight_k : found.weight_v;
      // Along the gradient, so that the difference is its squared norm, and across it.
      for (const at::Tensor& direction : {gradient / gradient.norm(), at::randn_like(gradient) * 0.1}) {
        constexpr double kStep = 1e-2;
        weight.add_(direction, kStep);
        const double up = loss();
        weight.add_(direction, -2.0 * kStep);
        const double down = loss();
        weight.add_(direction, kStep);
        const double expected = (gradient * direction).sum().item<double>();
        EXPECT_NEAR((up - down) / (2.0 * kStep), expected, 0.02 * std::abs(expected) + 2e-3) << layer << key;
      }
    }
    EXPECT_FALSE(layer_gradient(decoder_, layer, hidden_[static_cast<std::size_t>(layer)], batch_, g, kPairs)
                     .weight_k.defined());
    g = found.hidden;
  }
}

// Nothing reads the gradient of the first layer's input, so it can be left out; those of the rows are the same.
TEST_F(KlGradient, OfRowsAlone) {
  at::manual_seed(5);
  const at::Tensor g = at::randn({kTokens, 24});
  const LayerGradient whole = layer_gradient(decoder_, 0, hidden_[0], batch_, g, kPairs);
  const LayerGradient rows = layer_gradient(decoder_, 0, hidden_[0], batch_, g, kPairs, {.hidden = false});
  EXPECT_TRUE(whole.hidden.defined());
  EXPECT_FALSE(rows.hidden.defined());
  EXPECT_TRUE(rows.far_k.equal(whole.far_k));
  EXPECT_TRUE(rows.far_v.equal(whole.far_v));
  EXPECT_TRUE(rows.k.equal(whole.k));
  EXPECT_TRUE(rows.v.equal(whole.v));
}

// The attention's output that the forward pass has kept is taken as it is: another one gives another gradient.
TEST_F(KlGradient, OfAKeptAttentionOutput) {
  at::manual_seed(6);
  const at::Tensor g = at::randn({kTokens, 24});
  struct Watch : AttentionObserver {
    using AttentionObserver::AttentionObserver;
    void observe(const AttentionInput&, const at::Tensor& output) override { seen = output.clone(); }
    at::Tensor seen;
  };
  FullAttention exact;
  Watch watch(exact);
  {
    const c10::AutoGradMode off(false);
    decoder_.run_layer(1, hidden_[1], batch_, watch);
  }
  const LayerGradient again = layer_gradient(decoder_, 1, hidden_[1], batch_, g, kPairs);
  const LayerGradient kept = layer_gradient(decoder_, 1, hidden_[1], batch_, g, kPairs, {.output = watch.seen});
  EXPECT_TRUE(kept.hidden.equal(again.hidden));
  EXPECT_TRUE(kept.far_k.equal(again.far_k));
  EXPECT_TRUE(kept.far_v.equal(again.far_v));
  const LayerGradient other = layer_gradient(decoder_, 1, hidden_[1], batch_, g, kPairs, {.output = watch.seen * 2});
  EXPECT_FALSE(other.far_k.equal(again.far_k));
}

// BF16 activations: the same gradient within the precision of the type.
TEST_F(KlGradient, BFloat16) {
  Decoder half(checkpoint_, {.dtype = at::kBFloat16});
  const at::Tensor g = at::randn({kTokens, 24});
  const LayerGradient full = layer_gradient(decoder_, 1, hidden_[1], batch_, g, kPairs);
  const LayerGradient rough = layer_gradient(half, 1, hidden_[1].to(at::kBFloat16), batch_, g, kPairs);
  EXPECT_EQ(rough.hidden.scalar_type(), at::kFloat);
  EXPECT_LT(((rough.far_k - full.far_k).norm() / full.far_k.norm()).item<double>(), 0.05);
  EXPECT_LT(((rough.hidden - full.hidden).norm() / full.hidden.norm()).item<double>(), 0.05);
}

}  // namespace
}  // namespace oscar
