// Time of quantizing one row (encode and decode), by layout, encoder and clip.
#include <benchmark/benchmark.h>

#include "codec/rows.h"

namespace oscar {
namespace {

void quantize(benchmark::State& state, const RowCodec& codec) {
  constexpr std::int64_t kRows = 2048;
  const std::vector<float> rows = gaussian_rows(1, kRows, codec.code.head_dim);
  std::vector<float> out(rows.size());
  for (auto _ : state) {
    quantize_rows(codec, rows.data(), kRows, 0, out.data(), 0);
    benchmark::DoNotOptimize(out.data());
  }
  state.SetItemsProcessed(state.iterations() * kRows);  // rows
}

const int kRegistered = [] {
  const auto add = [](const std::string& name, const RowCodec& codec) {
    benchmark::RegisterBenchmark(name.c_str(), [codec](benchmark::State& state) { quantize(state, codec); });
  };
  for (const int d : {64, 128, 256}) {
    const std::string size = "/d" + std::to_string(d);
    RowCodec codec{.code = uniform_code(d)};
    add("uniform/minmax" + size, codec);
    codec.clip = 0.92f;
    add("uniform/minmax_clip" + size, codec);
    codec.clip = 0.0f, codec.encoder = Encoder::kSearch;
    add("uniform/search" + size, codec);
    codec.code = band_code(d, {4, 2, 1, 1});
    add("blocks_4211/search" + size, codec);
    codec.encoder = Encoder::kMinMax;
    add("blocks_4211/minmax" + size, codec);
  }
  return 0;
}();

}  // namespace
}  // namespace oscar

BENCHMARK_MAIN();
