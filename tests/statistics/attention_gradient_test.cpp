// The written-out backward pass of attention against autograd of the definition in FP64.
#include "statistics/attention_gradient.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>

namespace oscar {
namespace {

struct GradientCase {
  std::int64_t tokens = 30, heads = 4, kv_heads = 2, window = 0;
  FarPairs pairs{3, 5, true};
  double soft_cap = 0.0;
  bool sinks = false;
  std::int64_t chunk = 0;
};

// The definition: far pairs read copies of keys and values of their own. Gradients to q, k, v and both copies.
std::vector<at::Tensor> by_autograd(const AttentionInput& input, const at::Tensor& gradient, const FarPairs& pairs) {
  const std::int64_t tokens = input.q.size(0), group = input.q.size(1) / input.k.size(1);
  const auto leaf = [](const at::Tensor& x) { return x.detach().to(at::kDouble).requires_grad_(true); };
  const at::Tensor q = leaf(input.q), k = leaf(input.k), v = leaf(input.v), far_k = leaf(input.k),
                   far_v = leaf(input.v);
  const auto heads_first = [&](const at::Tensor& x) {
    return x.repeat_interleave(x.size(1) == q.size(1) ? 1 : group, 1).transpose(0, 1);
  };
  const at::Tensor i = at::arange(tokens).unsqueeze(1), j = at::arange(tokens).unsqueeze(0);
  const at::Tensor far = (j >= pairs.sink).logical_and(j <= i - pairs.recent);
  const auto logits = [&](const at::Tensor& keys) {
    return at::matmul(heads_first(q), heads_first(keys).transpose(1, 2)) * input.scale;
  };
  at::Tensor s = at::where(far, logits(far_k), logits(k));
  if (input.soft_cap > 0.0) s = at::tanh(s / input.soft_cap) * input.soft_cap;
  at::Tensor hidden = j > i;
  if (input.sliding_window > 0) hidden = hidden.logical_or(i - j >= input.sliding_window);
  if (input.chunk > 0) hidden = hidden.logical_or(at::floor_divide(i, input.chunk) != at::floor_divide(j, input.chunk));
  s = s.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  if (input.sinks.defined()) {
    const at::Tensor sinks = input.sinks.to(at::kDouble).view({-1, 1, 1}).expand({-1, tokens, 1});
    s = at::cat({s, sinks}, -1);
  }
  const at::Tensor p = at::softmax(s, -1).narrow(-1, 0, tokens);
  const at::Tensor out =
      (at::matmul(p * far, heads_first(far_v)) + at::matmul(p * far.logical_not(), heads_first(v))).transpose(0, 1);
  return torch::autograd::grad({out}, {q, k, v, far_k, far_v}, {gradient.to(at::kDouble)});
}

void compare(const GradientCase& c) {
  at::manual_seed(5);
  const std::int64_t d = 8;
  SequenceBatch batch{{0}, {c.tokens}, {0}};
  AttentionInput input;
  input.batch = &batch;
  input.q = at::randn({c.tokens, c.heads, d}) * 1.5;
  input.k = at::randn({c.tokens, c.kv_heads, d}) + 0.5;
  input.v = at::randn({c.tokens, c.kv_heads, d});
  input.scale = 0.35;
  input.sliding_window = c.window;
  input.chunk = c.chunk;
  input.soft_cap = c.soft_cap;
  if (c.sinks) input.sinks = at::randn({c.heads});
  FullAttention attention;
  const at::Tensor output = attention.attend(input), gradient = at::randn({c.tokens, c.heads, d});
  const AttentionGradient found = attention_gradient(input, output, gradient, c.pairs);
  const std::vector<at::Tensor> expected = by_autograd(input, gradient, c.pairs);
  const auto near = [](const at::Tensor& a, const at::Tensor& b, const char* name) {
    EXPECT_EQ(a.sizes(), b.sizes()) << name;
    EXPECT_LT((a.to(at::kDouble) - b).norm().item<double>(), 2e-5 * b.norm().item<double>() + 1e-6) << name;
  };
  near(found.q, expected[0], "q");
  near(found.k, expected[1] + expected[3], "k");
  near(found.v, expected[2] + expected[4], "v");
  near(found.far_k, expected[3], "far k");
  near(found.far_v, expected[4], "far v");
}

// Packed sequences are those sequences one by one.
TEST(AttentionGradient, PackedSequences) {
  at::manual_seed(8);
  SequenceBatch batch{{0, 1, 2}, {30, 7, 41}, {0, 0, 0}};
  const FarPairs pairs{3, 5, true};
  AttentionInput input;
  input.batch = &batch;
  input.q = at::randn({78, 4, 8});
  input.k = at::randn({78, 2, 8});
  input.v = at::randn({78, 2, 8});
  input.scale = 0.35;
  FullAttention attention;
  const at::Tensor output = attention.attend(input), gradient = at::randn({78, 4, 8});
  const AttentionGradient packed = attention_gradient(input, output, gradient, pairs);
  std::int64_t first = 0;
  for (const std::int64_t length : batch.lengths) {
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, first, length); };
    SequenceBatch one{{0}, {length}, {0}};
    AttentionInput alone = input;
    alone.batch = &one;
    alone.q = part(input.q), alone.k = part(input.k), alone.v = part(input.v);
    const AttentionGradient found = attention_gradient(alone, part(output), part(gradient), pairs);
    EXPECT_TRUE(part(packed.q).equal(found.q));
    EXPECT_TRUE(part(packed.k).equal(found.k));
    EXPECT_TRUE(part(packed.v).equal(found.v));
    EXPECT_TRUE(part(packed.far_k).equal(found.far_k));
    EXPECT_TRUE(part(packed.far_v).equal(found.far_v));
    first += length;
  }
}

TEST(AttentionGradient, FarPairsApart) { compare({}); }
TEST(AttentionGradient, SeveralBlocksOfQueries) { compare({.tokens = 700, .pairs = {20, 300, true}}); }
TEST(AttentionGradient, OneQueryHeadForEachKeyHead) { compare({.heads = 2, .kv_heads = 2}); }
TEST(AttentionGradient, NoSink) { compare({.pairs = {0, 1, true}}); }
TEST(AttentionGradient, NoFarPairs) { compare({.pairs = {3, 40, true}}); }
TEST(AttentionGradient, SinkLongerThanTheSequence) { compare({.pairs = {50, 2, true}}); }
TEST(AttentionGradient, SlidingWindow) { compare({.window = 9}); }
TEST(AttentionGradient, Chunks) { compare({.chunk = 11}); }
TEST(AttentionGradient, SoftCap) { compare({.soft_cap = 1.5}); }
TEST(AttentionGradient, SinkLogits) { compare({.sinks = true}); }
TEST(AttentionGradient, Everything) {
  compare({.tokens = 600, .window = 400, .pairs = {8, 100, true}, .soft_cap = 2.0, .sinks = true});
}

}  // namespace
}  // namespace oscar
