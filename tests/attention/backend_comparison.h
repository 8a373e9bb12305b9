// Fixture of tests that run both backends of the decode path, the GPU's and the CPU's, on the same calls.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "attention/scenario.h"
#include "base/errors.h"
#include "support/gpu.h"

namespace oscar {

// Tokens [begin, begin + count) of the call as a batch for one layer.
inline AttentionInput part(const Call& call, const SequenceBatch& batch, std::int64_t begin, std::int64_t count,
                           std::int64_t layer, at::Device device) {
  AttentionInput input = call.input;
  input.batch = &batch;
  input.layer = layer;
  for (auto [to, from] : {std::pair{&input.q, &call.input.q}, {&input.k, &call.input.k}, {&input.v, &call.input.v}}) {
    *to = from->narrow(0, begin, count).to(device);
  }
  if (input.sinks.defined()) input.sinks = input.sinks.to(device);
  return input;
}

// Of a from b, relative to the norm of b.
inline double difference(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.to(at::kCPU, at::kDouble), y = b.to(at::kCPU, at::kDouble);
  return ((x - y).norm() / y.norm()).item<double>();
}

class BackendComparison : public ::testing::Test {
 protected:
  void SetUp() override { OSCAR_NEEDS_GPU(); }
  const at::Device gpu_{at::kCUDA, 0};

  // As one ragged batch of whole sequences in each of two layers.
  void compare(const Scenario& s, const Call& call, double limit) {
    PagedAttention cpu(s.method, s.model), cuda(s.method, s.model, gpu_);
    for (std::int64_t layer = 0; layer < 2; ++layer) {
      const std::int64_t tokens = call.batch.tokens();
      const at::Tensor expected = cpu.attend(part(call, call.batch, 0, tokens, layer, at::kCPU));
      const at::Tensor found = cuda.attend(part(call, call.batch, 0, tokens, layer, gpu_));
      EXPECT_TRUE(found.is_cuda());
      EXPECT_EQ(found.scalar_type(), call.input.q.scalar_type());
      EXPECT_LT(difference(found, expected), limit) << "layer " << layer;
      for (const std::int64_t id : call.batch.ids) {
        if (!s.method.quantized) continue;
        const StoredPages a = cpu.stored(layer, id), b = cuda.stored(layer, id);
        EXPECT_EQ(a.tokens, b.tokens);
        expect_same_pages(s, layer, a, b);
      }
    }
    EXPECT_GT(cuda.allocated_bytes(), 0u);
  }
  // Layer 1 is filled at once, in parts, and token by token on the CPU: the same cache and the same continuation.
  void fill_in_three_ways(const Scenario& s, const Call& call, double limit) {
    PagedAttention at_once(s.method, s.model, gpu_), in_parts(s.method, s.model, gpu_), stepwise(s.method, s.model);
    const auto append = [&](PagedAttention& attention, std::int64_t begin, std::int64_t end, at::Device device) {
      const SequenceBatch batch{{7}, {end - begin}, {begin}};
      attention.append(part(call, batch, begin, end - begin, 1, device));
    };
    append(at_once, 0, 490, gpu_);
    std::int64_t done = 0;
    for (const std::int64_t next : {30, 31, 100, 350, 490}) append(in_parts, done, next, gpu_), done = next;
    append(stepwise, 0, 490, at::kCPU);
    const StoredPages a = at_once.stored(1, 7), b = in_parts.stored(1, 7), c = stepwise.stored(1, 7);
    EXPECT_EQ(a.tokens, c.tokens);
    EXPECT_EQ(b.tokens, c.tokens);
    expect_same_pages(s, 1, a, c);
    expect_same_pages(s, 1, b, c);
    const SequenceBatch tail{{7}, {11}, {490}};
    const at::Tensor expected = stepwise.attend(part(call, tail, 490, 11, 1, at::kCPU));
    const at::Tensor first = at_once.attend(part(call, tail, 490, 11, 1, gpu_));
    EXPECT_LT(difference(first, expected), limit);
    EXPECT_TRUE(at::equal(first, in_parts.attend(part(call, tail, 490, 11, 1, gpu_))));
  }

  // call: of 40 tokens.
  void expect_names_of_what_is_not_finite(const Scenario& s, Call call) {
    call.input.v[5][1][3] = INFINITY;
    PagedAttention attention(s.method, s.model, gpu_);
    try {
      attention.attend(part(call, call.batch, 0, 40, 1, gpu_));
      FAIL();
    } catch (const NumericalError& e) {
      EXPECT_THAT(e.what(), ::testing::HasSubstr("layer 1, KV head 1, value of token 5"));
    }
  }

  virtual void expect_same_pages(const Scenario&, std::int64_t, const StoredPages& a, const StoredPages& b) {
    EXPECT_EQ(a.pages, b.pages);
  }
};

}  // namespace oscar
