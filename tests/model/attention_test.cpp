// FullAttention: known answers, masking, packing, and an FP64 reference of the definition.
#include "model/attention.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include "support/gpu.h"

#include <cmath>
#include <limits>

namespace oscar {
namespace {

at::Tensor random(at::IntArrayRef shape, std::uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::TensorOptions().dtype(at::kFloat));
}

struct Case {
  SequenceBatch batch;
  AttentionInput input;

  Case(std::vector<std::int64_t> lengths, std::int64_t query_heads, std::int64_t kv_heads, std::int64_t dim) {
    for (std::size_t s = 0; s < lengths.size(); ++s) {
      batch.ids.push_back(static_cast<std::int64_t>(s));
      batch.starts.push_back(0);
    }
    batch.lengths = std::move(lengths);
    input.q = random({batch.tokens(), query_heads, dim}, 1);
    input.k = random({batch.tokens(), kv_heads, dim}, 2);
    input.v = random({batch.tokens(), kv_heads, dim}, 3);
    input.scale = 1.0 / std::sqrt(static_cast<double>(dim));
  }
  void move_to(at::Device device) {
    for (at::Tensor* tensor : {&input.q, &input.k, &input.v, &input.sinks}) {
      if (tensor->defined()) *tensor = tensor->to(device);
    }
  }
  at::Tensor run() {
    input.batch = &batch;
    return FullAttention().attend(input);
  }
};

// The definition, in FP64, over all packed sequences.
at::Tensor reference(const Case& c) {
  const AttentionInput& in = c.input;
  const std::int64_t heads = in.q.size(1), group = heads / in.k.size(1);
  std::vector<at::Tensor> parts;
  std::int64_t offset = 0;
  for (const std::int64_t n : c.batch.lengths) {
    const auto wide = [&](const at::Tensor& x) { return x.narrow(0, offset, n).to(at::kDouble).transpose(0, 1); };
    const at::Tensor q = wide(in.q), k = wide(in.k.repeat_interleave(group, 1)),
                     v = wide(in.v.repeat_interleave(group, 1));
    at::Tensor scores = at::matmul(q, k.transpose(1, 2)) * in.scale;
    if (in.soft_cap > 0) scores = at::tanh(scores / in.soft_cap) * in.soft_cap;
    const at::Tensor i = at::arange(n).unsqueeze(1), j = at::arange(n).unsqueeze(0);
    at::Tensor hidden = j.gt(i);
    if (in.sliding_window > 0) hidden = hidden.logical_or((i - j).ge(in.sliding_window));
    scores.masked_fill_(hidden, -std::numeric_limits<double>::infinity());
    at::Tensor weights = at::exp(scores);  // small scores: no shift needed
    at::Tensor total = weights.sum(-1, true);
    if (in.sinks.defined()) total = total + at::exp(in.sinks.to(at::kDouble)).view({heads, 1, 1});
    parts.push_back(at::matmul(weights / total, v).transpose(0, 1));
    offset += n;
  }
  return at::cat(parts);
}

void expect_close(const at::Tensor& actual, const at::Tensor& expected, double tolerance) {
  ASSERT_EQ(actual.sizes(), expected.sizes());
  const double error = (actual.to(at::kCPU, at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>();
  EXPECT_LT(error, tolerance);
}

TEST(FullAttention, OneKeyReturnsItsValue) {
  Case c({1}, 6, 2, 48);
  EXPECT_TRUE(at::equal(c.run(), c.input.v.repeat_interleave(3, 1)));
}

TEST(FullAttention, EqualKeysGiveTheMeanOfTheValuesSoFar) {
  Case c({50}, 4, 2, 64);
  c.input.k = c.input.k.narrow(0, 0, 1).expand({50, 2, 64}).contiguous();
  const at::Tensor count = at::arange(1, 51, at::kFloat).view({50, 1, 1});
  expect_close(c.run(), (c.input.v.cumsum(0) / count).repeat_interleave(2, 1), 2e-6);
}

TEST(FullAttention, OneLargeLogitPicksItsValue) {
  Case c({8}, 1, 1, 16);
  c.input.q.fill_(0);
  c.input.q.select(2, 0).fill_(1000);
  c.input.k.fill_(0);
  c.input.k.index_put_({at::tensor(3), at::tensor(0), at::tensor(0)}, at::tensor(1.0f));
  const at::Tensor out = c.run();
  for (int i = 3; i < 8; ++i) EXPECT_TRUE(at::equal(out[i][0], c.input.v[3][0]));
}

TEST(FullAttention, EarlierOutputsDoNotDependOnLaterTokens) {
  for (const std::int64_t window : {0, 7}) {
    Case c({40}, 6, 3, 80);
    c.input.sliding_window = window;
    const at::Tensor before = c.run();
    c.input.k.narrow(0, 25, 15).fill_(9);
    c.input.v.narrow(0, 25, 15).fill_(9);
    c.input.q.narrow(0, 25, 15).fill_(9);
    const at::Tensor after = c.run();
    EXPECT_TRUE(at::equal(before.narrow(0, 0, 25), after.narrow(0, 0, 25)));
    EXPECT_FALSE(at::allclose(before.narrow(0, 25, 15), after.narrow(0, 25, 15)));
  }
}

// Query i sees keys of [i / 16 * 16, i], whether the softmax is fused or written out.
TEST(FullAttention, AChunkSeesNothingOfThoseBefore) {
  for (const bool capped : {false, true}) {
    Case c({40, 16, 32, 5}, 4, 2, 32);
    c.input.chunk = 16;
    c.input.soft_cap = capped ? 3.0 : 0.0;
    Case pieces({16, 16, 8, 16, 16, 16, 5}, 4, 2, 32);
    pieces.input.soft_cap = c.input.soft_cap;
    pieces.input.q = c.input.q, pieces.input.k = c.input.k, pieces.input.v = c.input.v;
    expect_close(c.run(), reference(pieces), 2e-6);
  }
}

TEST(FullAttention, PackedSequencesEqualSeparateRuns) {
  // Successive sequences of one length take one call together.
  for (const std::vector<std::int64_t>& lengths :
       {std::vector<std::int64_t>{3, 1, 0, 70, 12}, {530, 530, 530}, {12, 12, 0, 12, 530, 530, 12}}) {
    for (const std::int64_t window : {0, 5}) {
      Case packed(lengths, 7, 1, 48);
      packed.input.sliding_window = window;
      const at::Tensor out = packed.run();
      std::int64_t offset = 0;
      for (const std::int64_t n : packed.batch.lengths) {
        if (n == 0) continue;
        Case one({n}, 7, 1, 48);
        one.input.sliding_window = window;
        one.input.q = packed.input.q.narrow(0, offset, n).clone();
        one.input.k = packed.input.k.narrow(0, offset, n).clone();
        one.input.v = packed.input.v.narrow(0, offset, n).clone();
        EXPECT_TRUE(at::equal(one.run(), out.narrow(0, offset, n)));
        offset += n;
      }
    }
  }
}

TEST(FullAttention, WindowOfOneReturnsTheValues) {
  Case c({600, 20}, 6, 2, 64);
  c.input.sliding_window = 1;
  EXPECT_TRUE(at::equal(c.run(), c.input.v.repeat_interleave(3, 1)));
}

TEST(FullAttention, WindowThatReachesEverythingEqualsNone) {
  Case c({100}, 4, 2, 64);
  const at::Tensor full = c.run();
  c.input.sliding_window = 100;
  EXPECT_TRUE(at::equal(c.run(), full));
}

// Every head ratio and width of the families, lengths above and below the query block, all kinds of masks.
void expect_definition(at::Device device) {
  for (const auto& [heads, kv_heads, dim] :
       std::vector<std::array<std::int64_t, 3>>{{6, 2, 48}, {7, 1, 80}, {4, 2, 128}, {2, 1, 256}, {3, 3, 20}}) {
    for (const std::int64_t window : {0, 33, 520}) {
      for (const int extra : {0, 1, 2, 3}) {
        if (extra != 0 && dim != 48) continue;
        Case c(dim == 80 ? std::vector<std::int64_t>{600, 600} : std::vector<std::int64_t>{600, 9}, heads, kv_heads,
               dim);
        c.input.sliding_window = window;
        if (extra & 1) c.input.soft_cap = 0.5;
        if (extra & 2) c.input.sinks = random({heads}, 5);
        const at::Tensor expected = reference(c);
        c.move_to(device);
        SCOPED_TRACE(testing::Message() << heads << "/" << kv_heads << " d " << dim << " window " << window
                                        << " soft cap " << (extra & 1) << " sinks " << (extra & 2));
        expect_close(c.run(), expected, 5e-6);
      }
    }
  }
}

TEST(FullAttention, EqualsTheDefinition) { expect_definition(at::kCPU); }

TEST(FullAttention, EqualsTheDefinitionOnTheGpu) {
  OSCAR_NEEDS_GPU();
  expect_definition(at::kCUDA);
}

TEST(FullAttention, AnInfiniteSinkTakesEverything) {
  Case c({5}, 2, 1, 16);
  c.input.sinks = at::full({2}, 1e4f);
  EXPECT_EQ(c.run().abs().max().item<float>(), 0.0f);
  c.input.sinks = at::full({2}, -1e4f);
  expect_close(c.run(), Case({5}, 2, 1, 16).run(), 1e-6);
}

TEST(FullAttention, NarrowTypesStayCloseToTheDefinition) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    Case c({300}, 6, 2, 64);
    c.input.sliding_window = 0;
    c.input.q = c.input.q.to(dtype);
    c.input.k = c.input.k.to(dtype);
    c.input.v = c.input.v.to(dtype);
    const at::Tensor out = c.run();
    EXPECT_EQ(out.scalar_type(), dtype);
    expect_close(out, reference(c), dtype == at::kHalf ? 3e-3 : 2e-2);
  }
}

TEST(FullAttention, LongSequencesStayWithinBoundedMemory) {
  // A [T, T] matrix of FP32 scores would take 17 GB here.
  Case c({65536}, 1, 1, 8);
  c.input.sliding_window = 16;
  c.input.k.fill_(0);
  const at::Tensor out = c.run();
  expect_close(out[65535][0], c.input.v.narrow(0, 65520, 16).mean(0)[0], 1e-5);
  c.input.soft_cap = 30;
  expect_close(c.run(), out, 1e-5);
}

TEST(FullAttention, RefusesPastTokens) {
  Case c({4}, 2, 1, 16);
  c.batch.starts = {7};
  EXPECT_THROW(c.run(), std::invalid_argument);
}

TEST(AttentionObserver, SeesInputAndOutputOfTheInnerAttention) {
  struct Probe : AttentionObserver {
    using AttentionObserver::AttentionObserver;
    at::Tensor q, output;
    void observe(const AttentionInput& input, const at::Tensor& out) override {
      q = input.q;
      output = out;
    }
  };
  Case c({9}, 4, 2, 16);
  FullAttention inner;
  Probe probe(inner);
  c.input.batch = &c.batch;
  const at::Tensor out = probe.attend(c.input);
  EXPECT_TRUE(out.is_same(probe.output));
  EXPECT_TRUE(probe.q.is_same(c.input.q));
  EXPECT_TRUE(at::equal(out, c.run()));
}

}  // namespace
}  // namespace oscar
