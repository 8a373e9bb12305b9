// Forward time of one decoder layer of an 8B model's geometry with random weights, beside the time of its matrix
// products alone: what is left is norms, RoPE, attention and element-wise work.
//   bench_layer [--benchmark_filter=...]
#include <benchmark/benchmark.h>

#include "bench/random_layer.h"
#include "support/paths.h"

namespace oscar {
namespace {

const RandomLayer& layer_8b() {
  static const RandomLayer layer = random_layer(geometry_8b());
  return layer;
}

void set_rate(benchmark::State& state, std::int64_t tokens) {
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(tokens * state.iterations()), benchmark::Counter::kIsRate);
}

void Layer8B(benchmark::State& state) {
  const RandomLayer& layer = layer_8b();
  const std::int64_t tokens = state.range(0);
  const SequenceBatch batch{.ids = {0}, .lengths = {tokens}, .starts = {0}};
  const RopeFrequencies frequencies =
      rope_frequencies(layer.config.rope, layer.config.head_dim, layer.config.max_position);
  const RopeTable table = rope_table(frequencies, batch, at::kFloat, at::kCPU);
  const at::Tensor hidden = random_hidden(layer.config, tokens);
  FullAttention attention;
  for (auto _ : state) benchmark::DoNotOptimize(layer.forward(hidden, batch, table, attention));
  set_rate(state, tokens);
}

void Layer8BMatrixProducts(benchmark::State& state) {
  const RandomLayer& layer = layer_8b();
  const LayerWeights& w = layer.weights;
  const std::int64_t tokens = state.range(0);
  const at::Tensor hidden = random_hidden(layer.config, tokens);
  const at::Tensor wide = at::randn({tokens, layer.config.intermediate});
  for (auto _ : state) {
    for (const at::Tensor& weight : {w.q, w.k, w.v, w.o, w.gate, w.up}) {
      benchmark::DoNotOptimize(at::linear(hidden, weight));
    }
    benchmark::DoNotOptimize(at::linear(wide, w.down));
  }
  set_rate(state, tokens);
}

// The whole forward pass of the sample model, as calibration runs it.
void SampleModel(benchmark::State& state) {
  static const Checkpoint checkpoint = Checkpoint::open(locate_model(OSCAR_SOURCE_DIR "/sample_data/tiny-qwen3"));
  static Decoder decoder(checkpoint, {});
  const std::int64_t tokens = state.range(0);
  const SequenceBatch batch{.ids = {0}, .lengths = {tokens}, .starts = {0}};
  const std::vector<std::int32_t> ids(tokens, 7);
  FullAttention attention;
  for (auto _ : state) benchmark::DoNotOptimize(decoder.forward(ids, batch, attention));
  set_rate(state, tokens);
}

BENCHMARK(Layer8B)->Arg(128)->Arg(512)->Arg(2048)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK(Layer8BMatrixProducts)->Arg(128)->Arg(512)->Arg(2048)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK(SampleModel)->Arg(512)->Arg(4096)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace oscar

BENCHMARK_MAIN();
