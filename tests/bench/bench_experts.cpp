// Experts of a Qwen3-30B-A3B layer (128 of width 768, 8 for each token, hidden size 2048) on a GPU in BF16: one grouped
// product for all against a product for each. Random weights and choices.
//   bench_experts [--benchmark_filter=...]
#include <ATen/ATen.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <benchmark/benchmark.h>
#include <c10/core/InferenceMode.h>

#include "model/experts.h"

namespace oscar {
namespace {

constexpr std::int64_t kExperts = 128, kPerToken = 8, kHidden = 2048, kWidth = 768;

const LayerWeights& weights() {
  static const LayerWeights made = [] {
    const auto bf16 = at::TensorOptions(at::kBFloat16).device(at::kCUDA);
    LayerWeights w;
    w.router = at::randn({kExperts, kHidden}, bf16).mul_(0.02);
    w.expert_gate_up = at::randn({kExperts, 2 * kWidth, kHidden}, bf16).mul_(0.02);
    w.expert_down = at::randn({kExperts, kHidden, kWidth}, bf16).mul_(0.03);
    return w;
  }();
  return made;
}

ExpertConfig config() {
  ExpertConfig c;
  c.count = kExperts, c.per_token = kPerToken, c.intermediate = kWidth;
  return c;
}

// All work of the iteration is done when it returns.
void wait(const at::Tensor& x) { benchmark::DoNotOptimize(x.view({-1})[0].item<float>()); }

template <class Run>
void measure(benchmark::State& state, const Run& run) {
  if (at::detail::getCUDAHooks().deviceCount() == 0) {
    state.SkipWithError("no GPU");
    return;
  }
  const c10::InferenceMode inference;
  const at::Tensor x = at::randn({state.range(0), kHidden}, at::TensorOptions(at::kBFloat16).device(at::kCUDA));
  for (int warm = 0; warm < 3; ++warm) wait(run(x));
  for (auto _ : state) wait(run(x));
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(state.range(0) * state.iterations()), benchmark::Counter::kIsRate);
}

// What the products read: rows sorted by expert.
ExpertRows sorted_rows(const at::Tensor& x) {
  const at::Tensor flat = route(x, weights(), config(), {}).experts.reshape({-1});
  const at::Tensor order = at::argsort(flat, true, 0, false);
  const at::Tensor counts = at::bincount(flat, {}, kExperts);
  return {x.index_select(0, at::floor_divide(order, kPerToken)), counts};
}

void Grouped(benchmark::State& state) {
  measure(state, [](const at::Tensor& x) {
    return grouped_experts(sorted_rows(x), weights(), config(), ExpertGate::kPlain, Activation::kSilu);
  });
}

void Looped(benchmark::State& state) {
  measure(state, [](const at::Tensor& x) {
    return looped_experts(sorted_rows(x), weights(), config(), ExpertGate::kPlain, Activation::kSilu);
  });
}

// Router, sorting, products and sum, as a layer runs them.
void ExpertMlp(benchmark::State& state) {
  measure(state, [](const at::Tensor& x) { return expert_mlp(x, x, weights(), config(), {}, Activation::kSilu); });
}

BENCHMARK(Grouped)->Arg(1)->Arg(64)->Arg(1024)->Arg(4096)->Unit(benchmark::kMicrosecond)->UseRealTime();
BENCHMARK(Looped)->Arg(1)->Arg(64)->Arg(1024)->Arg(4096)->Unit(benchmark::kMicrosecond)->UseRealTime();
BENCHMARK(ExpertMlp)->Arg(1)->Arg(64)->Arg(4096)->Arg(16384)->Unit(benchmark::kMicrosecond)->UseRealTime();

}  // namespace
}  // namespace oscar

BENCHMARK_MAIN();
