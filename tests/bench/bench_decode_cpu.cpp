// One decode step of one layer on the CPU at a given context: the FP32 path and its FP64 reference. 2 KV heads, group
// 2, d = 128, windows 64 + 256, 2-bit body.
#include <benchmark/benchmark.h>

#include "attention/cpu/decode_attention_cpu.h"
#include "attention/decode_attention_reference.h"
#include "attention/random_cache.h"

namespace oscar {
namespace {

RandomCache make_cache(std::int64_t context) {
  CacheShape shape{.batch = 1, .kv_heads = 2, .group = 2, .head_dim = 128};
  shape.key = shape.value = uniform_code(128);
  shape.sink = 64, shape.recent = 256, shape.body = static_cast<int>(context) - 320, shape.ragged = false;
  return RandomCache(shape, 1);
}

void fast(benchmark::State& state) {
  RandomCache cache = make_cache(state.range(0));
  const RowPages keys = cache.pages(Side::kKey), values = cache.pages(Side::kValue);
  for (auto _ : state) decode_attention_cpu(cache.params, keys, values);
  state.SetItemsProcessed(state.iterations() * state.range(0));  // tokens
}

void reference(benchmark::State& state) {
  RandomCache cache = make_cache(state.range(0));
  for (auto _ : state) decode_attention_reference(cache.params);
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

BENCHMARK(fast)->Arg(1024)->Arg(4096)->Arg(32768);
BENCHMARK(reference)->Arg(1024);

}  // namespace
}  // namespace oscar

BENCHMARK_MAIN();
