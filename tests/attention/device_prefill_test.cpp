// The simulated prefill on a GPU against the CPU, for every method. Needs a GPU; skipped without one.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "attention/cached_attention.h"
#include "attention/prefill_core.h"
#include "attention/rotated_scenario.h"
#include "attention/scenario.h"
#include "base/errors.h"
#include "support/gpu.h"

namespace oscar {
namespace {

constexpr CacheWindows kWindows{16, 32, 8};

Call on(const Call& call, at::Device device) {
  Call moved = call;
  for (at::Tensor* x : {&moved.input.q, &moved.input.k, &moved.input.v}) *x = x->to(device);
  if (moved.input.sinks.defined()) moved.input.sinks = moved.input.sinks.to(device);
  moved.input.batch = &moved.batch;
  return moved;
}

double difference(const at::Tensor& found, const at::Tensor& expected) {
  const at::Tensor x = found.to(at::kCPU, at::kDouble), y = expected.to(at::kCPU, at::kDouble);
  return ((x - y).norm() / y.norm()).item<double>();
}

class DevicePrefill : public testing::Test {
 protected:
  void SetUp() override { OSCAR_NEEDS_GPU(); }
  const at::Device gpu_{at::kCUDA, 0};

  void compare(const Scenario& s, const Call& call, double limit) {
    Call cpu = on(call, at::kCPU), cuda = on(call, gpu_);
    SimulatedPrefillAttention attention(s.method);
    const at::Tensor expected = attention.attend(cpu.input), found = attention.attend(cuda.input);
    EXPECT_TRUE(found.is_cuda());
    EXPECT_EQ(found.scalar_type(), call.input.q.scalar_type());
    EXPECT_LT(difference(found, expected), limit);
  }

  // Rows as the queries of the sequence read them: the same bits.
  void expect_same_rows(const Scenario& s, const Call& call) {
    for (const Side side : {Side::kKey, Side::kValue}) {
      const at::Tensor rows = side == Side::kKey ? call.input.k : call.input.v;
      const CachedRows cpu = decoded_rows(s.method, 0, side, rows),
                       cuda = decoded_rows(s.method, 0, side, rows.to(gpu_));
      EXPECT_TRUE(at::equal(cuda.plain.to(at::kCPU), cpu.plain));
      ASSERT_EQ(cuda.coded.defined(), cpu.coded.defined());
      if (!cpu.coded.defined()) continue;
      const std::int64_t begin = cpu.windows.sink, count = cpu.windows.quantized_end(rows.size(0)) - begin;
      EXPECT_TRUE(at::equal(cuda.coded.to(at::kCPU).narrow(1, begin, count), cpu.coded.narrow(1, begin, count)));
    }
  }
};

TEST_F(DevicePrefill, EveryBasisAndCode) {
  for (const Basis basis : {Basis::kIdentity, Basis::kLayer, Basis::kHead, Basis::kCentered, Basis::kSkewed}) {
    for (const int d : {64, 80, 128}) {
      std::vector<RowCode> codes{uniform_code(d)};
      if (d % 32 == 0) codes.push_back(band_code(d, {4, 2, 1, 0}));
      for (const RowCode& code : codes) {
        Scenario s = make_scenario(d, 2, 2, basis, kWindows, code);
        if (code.layout == Layout::kBlocks) {
          for (LayerCode& layer : s.method.codes) {
            layer.key_sigma = layer.value_sigma = {{1.5f, 1.0f, 0.7f, 0.5f}, {1.2f, 1.1f, 0.8f, 0.6f}};
          }
        }
        for (const Encoder encoder : {Encoder::kMinMax, Encoder::kSearch}) {
          s.method.key_encoder = s.method.value_encoder = encoder;
          SCOPED_TRACE(testing::Message()
                       << "basis " << static_cast<int>(basis) << " d " << d << " blocks "
                       << (code.layout == Layout::kBlocks) << " encoder " << static_cast<int>(encoder));
          const Call call = make_call(s, {200, 1, 77}, 5);
          compare(s, call, 1e-5);
          expect_same_rows(s, make_call(s, {200}, 6));
        }
      }
    }
  }
}

TEST_F(DevicePrefill, KeysCenteredBeforeRope) {
  for (const int d : {64, 128}) {
    const Scenario s = rotated_scenario(kWindows, 5.0, band_code(d, {4, 2, 1, 0}));
    SCOPED_TRACE(d);
    compare(s, biased_call(s, {200, 1, 77}, 25), 1e-5);
    expect_same_rows(s, biased_call(s, {200}, 26));
  }
}

TEST_F(DevicePrefill, SlidingWindowSoftCapSinksAndBfloat16) {
  const Scenario s = make_scenario(64, 2, 3, Basis::kSkewed, kWindows, uniform_code(64));
  Call call = make_call(s, {150, 60}, 9);
  call.input.sliding_window = 70;
  compare(s, call, 1e-5);
  call.input.soft_cap = 20.0;
  call.input.sinks = normal(4, {6});
  compare(s, call, 1e-5);
  compare(s, make_call(s, {150}, 10, at::kBFloat16), 5e-3);
}

TEST_F(DevicePrefill, BaselineAndNotFiniteRows) {
  Scenario s = make_scenario(64, 2, 2, Basis::kIdentity, kWindows, uniform_code(64));
  Call call = make_call(s, {130}, 3);
  call.input.k[40][1][3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(compare(s, call, 1.0), NumericalError);
  Call moved = on(call, gpu_);
  SimulatedPrefillAttention attention(s.method);
  EXPECT_THROW(attention.attend(moved.input), NumericalError);
  s.method.quantized = false;
  compare(s, make_call(s, {130}, 3), 1e-5);
}

// Where a sum or a product of the basis rounds otherwise, a code at a tie may differ: few rows.
TEST_F(DevicePrefill, EveryMethodOfOtherPapers) {
  for (const MethodRow& row : method_registry()) {
    if (!row.description) continue;
    SCOPED_TRACE(row.id);
    Scenario s = make_scenario(128, 4, 2, Basis::kIdentity, kWindows, uniform_code(128));
    s.model.layers = 8, s.model.max_position = 4096, s.model.rope.theta = 10000.0;
    s.method = make_spec_method(*row.description, s.model);
    Call call = make_call(s, {700}, 21);
    call.input.layer = 4;
    compare(s, call, 2e-3);
    for (const Side side : {Side::kKey, Side::kValue}) {
      const at::Tensor rows = side == Side::kKey ? call.input.k : call.input.v;
      const at::Tensor expected = s.method.coder->code(s.method, 4, side, rows);
      const at::Tensor found = s.method.coder->code(s.method, 4, side, rows.to(gpu_)).to(at::kCPU);
      const at::Tensor changed = (found - expected).abs().gt(1e-4 * expected.abs().max());
      EXPECT_LT(changed.to(at::kDouble).mean().item<double>(), 2e-3);
      EXPECT_GT((expected - rows).abs().max().item<double>(), 1e-4);  // something was coded
    }
  }
}

}  // namespace
}  // namespace oscar
