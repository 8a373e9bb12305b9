// oscar-fit's work on statistics of an 8B model's geometry (36 layers, 32/8 heads, d 128) and of the sample model's:
// eigenvectors, clip search, predictions; file reading and writing not included. Random rows, so spectra are flat; the
// time does not depend on them.
//   bench_fit [--benchmark_filter=...]
#include <ATen/ATen.h>
#include <benchmark/benchmark.h>

#include "fit/fit.h"
#include "statistics/random_statistics.h"

namespace oscar {
namespace {

void bench_fit(benchmark::State& state, std::int64_t layers, std::int64_t query_heads, std::int64_t kv_heads,
               ClipMode clip, Scope scope) {
  const Statistics statistics = random_statistics({.layers = layers,
                                                   .query_heads = query_heads,
                                                   .kv_heads = kv_heads,
                                                   .head_dim = 128,
                                                   .tokens = 1024,
                                                   .rows = 512});
  FitOptions options;
  options.clip = clip;
  options.scope = scope;
  for (auto _ : state) benchmark::DoNotOptimize(fit(statistics, options));
}

#define OSCAR_BENCH_FIT(name, ...)                \
  BENCHMARK_CAPTURE(bench_fit, name, __VA_ARGS__) \
      ->Unit(benchmark::kSecond)                  \
      ->Iterations(1)                             \
      ->UseRealTime()                             \
      ->MeasureProcessCPUTime()
OSCAR_BENCH_FIT(sample_model, 4, 4, 2, ClipMode::kSearch, Scope::kLayer);
OSCAR_BENCH_FIT(geometry_8b_without_clip_search, 36, 32, 8, ClipMode::kNone, Scope::kLayer);
OSCAR_BENCH_FIT(geometry_8b, 36, 32, 8, ClipMode::kSearch, Scope::kLayer);
OSCAR_BENCH_FIT(geometry_8b_per_head, 36, 32, 8, ClipMode::kSearch, Scope::kHead);

}  // namespace
}  // namespace oscar

BENCHMARK_MAIN();
