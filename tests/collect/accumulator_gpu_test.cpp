// Moments on a GPU against the CPU's for the same Q, K, V, O.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "collect/accumulator.h"
#include "collect/device_values.h"
#include "support/gpu.h"

namespace oscar {
namespace {

struct Rows {
  at::Tensor q, k, v, o;
};

Rows random_rows(at::ScalarType dtype) {
  at::manual_seed(11);
  const auto rows = [&](std::int64_t heads) { return at::randn({5000, heads, 128}).mul_(3).to(dtype); };
  return {rows(8), rows(2) + 0.5, rows(2), rows(8)};
}

LayerMoments moments_on(const Rows& r, at::Device device) {
  MomentAccumulator moments(2, 128, device);
  // Uneven steps, as prompts come.
  for (const auto& [first, count] : {std::pair<std::int64_t, std::int64_t>{0, 1700}, {1700, 1}, {1701, 3299}}) {
    const auto part = [&, f = first, c = count](const at::Tensor& x) { return x.narrow(0, f, c).to(device); };
    moments.add(part(r.q), part(r.k), part(r.v), part(r.o));
  }
  LayerMoments out;
  moments.finish(out);
  LayerCopier().to_cpu(out);
  EnergyAccumulator energy(out.q_gram, device);
  energy.add(r.k.to(device), r.v.to(device));
  out.energy_gram = energy.energy_gram().cpu();
  out.wo_gram = output_projection_gram(r.o.reshape({-1, 8 * 128}).narrow(0, 0, 512).to(device), 2, 128).cpu();
  return out;
}

std::vector<std::pair<const char*, at::Tensor>> tensors(const LayerMoments& m) {
  return {{"q_gram", m.q_gram}, {"k_gram", m.k_gram}, {"v_gram", m.v_gram},           {"o_gram", m.o_gram},
          {"k_sum", m.k_sum},   {"v_sum", m.v_sum},   {"energy_gram", m.energy_gram}, {"wo_gram", m.wo_gram}};
}

TEST(MomentsOnTheGpu, EqualTheCpu) {
  OSCAR_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Rows rows = random_rows(dtype);
    const auto cpu = tensors(moments_on(rows, at::kCPU)), gpu = tensors(moments_on(rows, at::Device(at::kCUDA, 0)));
    for (std::size_t i = 0; i < cpu.size(); ++i) {
      const double error = (cpu[i].second - gpu[i].second).norm().item<double>() / cpu[i].second.norm().item<double>();
      EXPECT_LT(error, 1e-6) << cpu[i].first;
    }
  }
}

// Key biases hundreds of times the deviation, as Qwen2.5 has them: the covariance keeps its digits.
TEST(MomentsOnTheGpu, CovarianceUnderALargeMean) {
  OSCAR_NEEDS_GPU();
  for (const std::int64_t d : {64, 128}) {
    at::manual_seed(5);
    const at::Tensor x = (at::randn({4000, 2, d}) + 300 * at::randn({2, d})).to(at::kBFloat16);
    const at::Tensor exact = x.to(at::kDouble).transpose(0, 1), mean = exact.mean(1, true);
    const at::Tensor expected = at::bmm((exact - mean).transpose(1, 2), exact - mean);
    MomentAccumulator moments(2, d, at::Device(at::kCUDA, 0));
    const at::Tensor on_gpu = x.to(at::kCUDA);
    for (const std::int64_t first : {0, 1000, 2000, 3000}) {
      const at::Tensor part = on_gpu.narrow(0, first, 1000);
      moments.add(part, part, part, part);
    }
    LayerMoments out;
    moments.finish(out);
    LayerCopier().to_cpu(out);
    const at::Tensor sum = out.k_sum.unsqueeze(1);
    const at::Tensor found = out.k_gram - at::bmm(sum.transpose(1, 2), sum) / 4000.0;
    EXPECT_LT(((found - expected).norm() / expected.norm()).item<double>(), 1e-5) << d;
  }
}

TEST(MomentsOnTheGpu, TwoRunsAreIdentical) {
  OSCAR_NEEDS_GPU();
  const Rows rows = random_rows(at::kBFloat16);
  const auto one = tensors(moments_on(rows, at::Device(at::kCUDA, 0))),
             two = tensors(moments_on(rows, at::Device(at::kCUDA, 0)));
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(at::equal(one[i].second, two[i].second)) << one[i].first;
}

}  // namespace
}  // namespace oscar
