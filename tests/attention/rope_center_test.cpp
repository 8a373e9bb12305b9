// Keys that the cache holds without their mean before RoPE: both paths agree with each other and with the model.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "attention/cached_attention.h"
#include "attention/prefill_core.h"
#include "attention/rotated_scenario.h"

namespace oscar {
namespace {

at::Tensor attend(Attention& attention, Call& call) {
  call.input.batch = &call.batch;
  return attention.attend(call.input);
}

double difference(const at::Tensor& a, const at::Tensor& b) { return ((a - b).norm() / b.norm()).item<double>(); }

TEST(RopeCenter, PathsAgreeAndEqualTheModel) {
  for (const double bias : {1.0, 30.0}) {
    for (const int variant : {0, 1, 2}) {
      Scenario s = rotated_scenario({8, 16, 1}, bias);
      Call call = biased_call(s, {150, 1, 40}, 60);
      call.input.q = call.input.q / bias;  // logits of a size that softmax does not saturate
      if (variant == 1) call.input.soft_cap = 3.0;
      if (variant == 2) call.input.sinks = normal(61, {4}), call.input.sliding_window = 60;
      SimulatedPrefillAttention prefill(s.method);
      PagedAttention decode(s.method, s.model);
      const at::Tensor a = attend(prefill, call), b = attend(decode, call);
      EXPECT_LT(difference(b, a), 1e-5) << bias << " " << variant;
      FullAttention full;
      const at::Tensor exact = attend(full, call);
      EXPECT_LT(difference(a, exact), 0.15) << bias << " " << variant;  // four bits
      s.method.quantized = false;                                       // BF16 tiers alone
      SimulatedPrefillAttention plain(s.method);
      EXPECT_LT(difference(attend(plain, call), exact), 0.01) << bias << " " << variant;
    }
  }
}

// Tokens that come one by one are stored as those that come at once.
TEST(RopeCenter, StepsContinueTheirSequences) {
  Scenario s = rotated_scenario({4, 8, 1}, 5.0);
  Call call = biased_call(s, {60}, 70);
  PagedAttention whole(s.method, s.model), steps(s.method, s.model);
  const at::Tensor expected = attend(whole, call);
  at::Tensor found = at::empty_like(expected);
  for (std::int64_t first = 0, count = 25; first < 60; first += count, count = 1) {
    Call part;
    part.batch = {{7}, {count}, {first}};
    part.input = call.input;
    part.input.q = call.input.q.narrow(0, first, count);
    part.input.k = call.input.k.narrow(0, first, count);
    part.input.v = call.input.v.narrow(0, first, count);
    found.narrow(0, first, count).copy_(attend(steps, part));
  }
  EXPECT_LT(difference(found, expected), 1e-6);
  EXPECT_EQ(whole.stored(0, 7).pages, steps.stored(0, 7).pages);
}

TEST(RopeCenter, ReconstructionPutsTheMeanBack) {
  const Scenario s = rotated_scenario({4, 8, 1}, 30.0);
  const Call call = biased_call(s, {50}, 80);
  const CachedRows rows = decoded_model_rows(s.method, 0, Side::kKey, call.input.k);
  EXPECT_LT(difference(rows.plain, call.input.k.transpose(0, 1)), 1e-3);
  EXPECT_LT(difference(rows.coded, call.input.k.transpose(0, 1)), 0.02);
}

}  // namespace
}  // namespace oscar
