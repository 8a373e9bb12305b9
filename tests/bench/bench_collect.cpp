// What the moments cost beside the forward pass: sums, row sample, K and V spool, energy pass, residual energy. The
// target is at most 5 % of a layer of an 8B model's geometry and at most 50 % of the sample model's layers.
//   bench_collect [--benchmark_filter=...]
// Counters: forward_ms and moments_ms of one layer in CPU time of all threads, share = moments / forward, and the same
// share in wall-clock time. Each is the least over the iterations, so that a busy machine distorts little.
#include <ATen/ATen.h>
#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>

#include "bench/random_layer.h"
#include "collect/accumulator.h"
#include "collect/moment_observer.h"
#include "support/paths.h"
#include "support/temp_directory.h"

namespace oscar {
namespace {

double clock_seconds(clockid_t id) {
  timespec t{};
  clock_gettime(id, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

struct Cost {
  double cpu = 1e30, wall = 1e30;
};

template <typename Fn>
void least(Cost& cost, Fn fn) {
  const double cpu = clock_seconds(CLOCK_PROCESS_CPUTIME_ID), wall = clock_seconds(CLOCK_MONOTONIC);
  fn();
  cost.cpu = std::min(cost.cpu, clock_seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu);
  cost.wall = std::min(cost.wall, clock_seconds(CLOCK_MONOTONIC) - wall);
}

// Keeps what attention saw, so that forward pass and moments can be timed one after the other.
class Recorder : public AttentionObserver {
 public:
  using AttentionObserver::AttentionObserver;
  AttentionInput input;
  at::Tensor output;

 protected:
  void observe(const AttentionInput& in, const at::Tensor& out) override {
    input = in;
    output = out;
  }
};

// Lets the benchmark hand a recorded layer to the observer that collection uses.
class Timed : public MomentObserver {
 public:
  using MomentObserver::MomentObserver;
  using MomentObserver::observe;
};

// One layer: forward(attention) -> hidden; `config` of its geometry, `tokens` in one sequence.
template <typename Forward>
void compare(benchmark::State& state, const ModelConfig& config, std::int64_t tokens, Forward forward) {
  const c10::InferenceMode no_gradients;
  TempDirectory directory;
  MirroredSpool spool(directory / "kv.bin", tokens, {2 * config.kv_heads, config.head_dim}, at::kFloat, at::kCPU);
  PromptSet prompts;
  prompts.prompts.push_back({"bench", "input_ids", std::vector<std::int32_t>(static_cast<std::size_t>(tokens), 7)});
  const TokenPlan plan = make_token_plan(prompts, tokens, tokens);
  FullAttention attention;
  Recorder recorder(attention);
  Timed observer(attention, config, prompts, plan, sample_sequences(0, "", {{0, tokens}}, 512 * tokens / 30000 + 1),
                 FarPairs{.enabled = false}, at::kCPU);
  observer.begin_layer({});
  Cost pass, moments;
  for (auto _ : state) {
    at::Tensor hidden;
    least(pass, [&] { hidden = forward(recorder); });
    least(moments, [&] {
      observer.begin_step(plan.steps[0], spool);
      observer.observe(recorder.input, recorder.output);
      benchmark::DoNotOptimize(at::linalg_vector_norm(hidden, 2, at::IntArrayRef({-1}), false, at::kFloat));
      EnergyAccumulator energy(recorder.input.k.new_ones({config.kv_heads, config.head_dim, config.head_dim}),
                               at::kCPU);
      const at::Tensor rows = spool.read(0, tokens);
      energy.add(rows.narrow(1, 0, config.kv_heads), rows.narrow(1, config.kv_heads, config.kv_heads));
    });
  }
  state.counters["forward_ms"] = 1e3 * pass.cpu;
  state.counters["moments_ms"] = 1e3 * moments.cpu;
  state.counters["share_cpu"] = moments.cpu / pass.cpu;
  state.counters["share_wall"] = moments.wall / pass.wall;
}

void Layer8B(benchmark::State& state) {
  static const RandomLayer layer = random_layer(geometry_8b());
  const std::int64_t tokens = state.range(0);
  const SequenceBatch batch{.ids = {0}, .lengths = {tokens}, .starts = {0}};
  const RopeFrequencies frequencies =
      rope_frequencies(layer.config.rope, layer.config.head_dim, layer.config.max_position);
  const RopeTable table = rope_table(frequencies, batch, at::kFloat, at::kCPU);
  const at::Tensor hidden = random_hidden(layer.config, tokens);
  compare(state, layer.config, tokens,
          [&](Attention& attention) { return layer.forward(hidden, batch, table, attention); });
}

void SampleModel(benchmark::State& state) {
  static const Checkpoint checkpoint = Checkpoint::open(locate_model(OSCAR_SOURCE_DIR "/sample_data/tiny-qwen3"));
  static Decoder decoder(checkpoint, {});
  const std::int64_t tokens = state.range(0);
  const SequenceBatch batch{.ids = {0}, .lengths = {tokens}, .starts = {0}};
  const at::Tensor hidden = decoder.embed(std::vector<std::int32_t>(static_cast<std::size_t>(tokens), 7));
  compare(state, checkpoint.config(), tokens,
          [&](Attention& attention) { return decoder.run_layer(0, hidden, batch, attention); });
}

BENCHMARK(Layer8B)->Arg(512)->Arg(2048)->Iterations(3)->Unit(benchmark::kMillisecond);
BENCHMARK(SampleModel)->Arg(512)->Arg(2048)->Arg(4096)->Iterations(15)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace oscar

BENCHMARK_MAIN();
