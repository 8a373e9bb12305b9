// Fixture of tests that run both backends of the decode path, the GPU's and the CPU's, on the same calls.
#pragma once

#include <gtest/gtest.h>

#include <utility>

#include "attention/scenario.h"
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
  virtual void expect_same_pages(const Scenario&, std::int64_t, const StoredPages& a, const StoredPages& b) {
    EXPECT_EQ(a.pages, b.pages);
  }
};

}  // namespace oscar
