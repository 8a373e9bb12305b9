// Caches that no kernel of a GPU reads: tensors on the GPU, cache and attention on the CPU, as if all were there. Needs
// a GPU; skipped without one.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "attention/backend_comparison.h"
#include "attention/rotated_scenario.h"

namespace oscar {
namespace {

constexpr double kLimit = 1e-4;

class HostBackendCuda : public BackendComparison {
 protected:
  void compare(const Scenario& s, const Call& call, double limit = kLimit) {
    EXPECT_NE(decode_note(s.method, s.model, gpu_), "");  // else a kernel is tested
    BackendComparison::compare(s, call, limit);
  }
};

TEST_F(HostBackendCuda, HeadSizesGroupsAndBases) {
  std::uint64_t seed = 1;
  for (const int d : {24, 32, 48, 72, 80, 96, 128, 512}) {
    for (const Basis basis : {Basis::kIdentity, Basis::kLayer, Basis::kHead, Basis::kCentered, Basis::kSkewed}) {
      const RowCode code = uniform_code(d, d / 2, basis == Basis::kHead ? ParamType::kBFloat16 : ParamType::kFloat16);
      const Scenario s = make_scenario(d, 2, d == 96 ? 17 : 3, basis, {.sink = 64, .recent = 40, .flush = 1}, code);
      SCOPED_TRACE(testing::Message() << "d " << d << " basis " << static_cast<int>(basis));
      compare(s, make_call(s, {171, 1, 90}, seed += 10));
    }
  }
}

TEST_F(HostBackendCuda, BFloat16Activations) {
  const Scenario s = make_scenario(96, 2, 3, Basis::kCentered, {16, 40, 1}, uniform_code(96));
  compare(s, make_call(s, {171, 30}, 50, at::kBFloat16), 5e-3);  // the output is rounded
}

TEST_F(HostBackendCuda, EveryTokenInBf16) {
  Scenario s = make_scenario(80, 2, 4, Basis::kIdentity, {64, 256, 1}, uniform_code(80));
  s.method.quantized = false;
  compare(s, make_call(s, {333, 70}, 77));
}

TEST_F(HostBackendCuda, KeysCenteredBeforeRope) {
  for (const double bias : {1.0, 30.0}) {
    for (const int variant : {0, 1, 2}) {
      const Scenario s = rotated_scenario({8, 16, 1}, bias, uniform_code(64, 32));
      Call call = biased_call(s, {150, 1, 40}, 60);
      call.input.q = call.input.q / bias;
      if (variant == 1) call.input.soft_cap = 3.0;
      if (variant == 2) call.input.sinks = normal(61, {4}), call.input.sliding_window = 60;
      SCOPED_TRACE(testing::Message() << "bias " << bias << " variant " << variant);
      compare(s, call);
    }
  }
}

TEST_F(HostBackendCuda, MeansUnderASoftCapAndSinkLogits) {
  for (const int variant : {0, 1, 2}) {
    Scenario s =
        make_scenario(128, 2, 4, variant == 1 ? Basis::kSkewed : Basis::kCentered, {16, 40, 1}, uniform_code(128));
    Call call = make_call(s, {200, 90}, 400);
    s.model.logit_soft_cap = variant != 1, s.model.sink_logits = variant != 0;
    if (s.model.logit_soft_cap) call.input.soft_cap = 5.0;
    if (s.model.sink_logits) call.input.sinks = normal(401, {8});
    if (variant == 2) call.input.sliding_window = 70;
    SCOPED_TRACE(testing::Message() << "variant " << variant);
    compare(s, call);
  }
}

// Filling at once, in parts, and token by token: the same cache and the same continuation.
TEST_F(HostBackendCuda, FillingAtOnceIsAppendingTokenByToken) {
  for (const CacheWindows& windows : {CacheWindows{64, 40, 1}, CacheWindows{64, 96, 24}, CacheWindows{0, 16, 4}}) {
    const Scenario s = make_scenario(96, 2, 4, Basis::kHead, windows, uniform_code(96));
    fill_in_three_ways(s, make_call(s, {501}, 31), kLimit);
  }
}

TEST_F(HostBackendCuda, NamesTheLayerAndHeadOfAValueThatIsNotFinite) {
  const Scenario s = make_scenario(96, 2, 2, Basis::kIdentity, {0, 8, 1}, uniform_code(96));
  expect_names_of_what_is_not_finite(s, make_call(s, {40}, 3));
}

}  // namespace
}  // namespace oscar
