// Far pairs on a GPU, by the kernel and by blocks of scores, against the CPU's for the same Q, K, V, O in BF16.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "collect/device_values.h"
#include "collect/far_pairs.h"
#include "support/gpu.h"

namespace oscar {
namespace {

struct Case {
  std::vector<std::int64_t> lengths;
  std::int64_t heads, kv_heads, d;
  FarPairs pairs;
  bool sinks = false;
  double soft_cap = 0.0;  // the kernel takes none: blocks of scores
};

struct Problem {
  SequenceBatch batch;
  AttentionInput input;
  at::Tensor o_weight;
  Unrotation::Rows rows;
};

Problem problem(const Case& c) {
  at::manual_seed(17);
  Problem p;
  p.batch.lengths = c.lengths;
  p.batch.starts.assign(c.lengths.size(), 0);
  p.batch.ids.resize(c.lengths.size());
  std::iota(p.batch.ids.begin(), p.batch.ids.end(), 0);
  const std::int64_t tokens = p.batch.tokens();
  p.input.q = (at::randn({tokens, c.heads, c.d}) * 1.5).to(at::kBFloat16);
  p.input.k = (at::randn({tokens, c.kv_heads, c.d}) + 1.0).to(at::kBFloat16);
  p.input.v = (at::randn({tokens, c.kv_heads, c.d}) + 0.5).to(at::kBFloat16);
  p.input.scale = 1.0 / std::sqrt(static_cast<double>(c.d));
  p.input.soft_cap = c.soft_cap;
  if (c.sinks) p.input.sinks = at::randn({c.heads}) + 2.0;
  p.o_weight = at::randn({3 * c.d, c.heads * c.d});
  const at::Tensor angles = at::randn({tokens, c.d / 2}) * 3.0;
  p.rows = {angles.cos(), angles.sin()};
  return p;
}

LayerMoments far_pairs_on(at::Device device, const Problem& p, const Case& c) {
  AttentionInput input = p.input;
  input.batch = &p.batch;
  FullAttention attention;
  const at::Tensor output = attention.attend(input);
  input.q = input.q.to(device), input.k = input.k.to(device), input.v = input.v.to(device);
  FarPairs pairs = c.pairs;
  pairs.cpu_queries = std::int64_t{1} << 20;  // all, as on a GPU
  FarPairAccumulator far(c.heads, c.kv_heads, c.d, pairs, device);
  far.begin_layer(p.o_weight.to(device));
  far.add(input, output.to(device), {p.rows.cos.to(device), p.rows.sin.to(device)});
  LayerMoments out;
  far.finish(out);
  LayerCopier().to_cpu(out);
  return out;
}

const Case kCases[] = {
    {{700, 90, 401}, 8, 2, 128, {64, 256, true}},    {{333, 140}, 4, 4, 64, {3, 41, true}},
    {{600}, 4, 1, 128, {0, 1, true}, true},          {{2500}, 2, 1, 64, {64, 256, true}},  // two runs of queries
    {{300}, 4, 2, 128, {16, 64, true}, false, 15.0}, {{321, 322, 384, 385}, 4, 2, 128, {64, 256, true}},
};

TEST(FarPairsOnTheGpu, EqualTheCpu) {
  OSCAR_NEEDS_GPU();
  for (const Case& c : kCases) {
    const Problem p = problem(c);
    const LayerMoments cpu = far_pairs_on(at::kCPU, p, c), gpu = far_pairs_on(at::Device(at::kCUDA, 0), p, c);
    const auto error = [](const at::Tensor& a, const at::Tensor& b) {
      return ((a - b).norm() / a.norm()).item<double>();
    };
    EXPECT_LT(error(cpu.far_q_gram, gpu.far_q_gram), 1e-4) << c.d << ", " << c.lengths.front();
    EXPECT_LT(error(cpu.far_pre_q_gram, gpu.far_pre_q_gram), 1e-4) << c.d << ", " << c.lengths.front();
    EXPECT_LT(error(cpu.far_v_weight, gpu.far_v_weight), 1e-4) << c.d << ", " << c.lengths.front();
    EXPECT_TRUE(at::equal(cpu.far_count, gpu.far_count));
  }
}

TEST(FarPairsOnTheGpu, TwoRunsAreIdentical) {
  OSCAR_NEEDS_GPU();
  const Problem p = problem(kCases[0]);
  const LayerMoments one = far_pairs_on(at::Device(at::kCUDA, 0), p, kCases[0]),
                     two = far_pairs_on(at::Device(at::kCUDA, 0), p, kCases[0]);
  EXPECT_TRUE(at::equal(one.far_q_gram, two.far_q_gram));
  EXPECT_TRUE(at::equal(one.far_v_weight, two.far_v_weight));
}

}  // namespace
}  // namespace oscar
