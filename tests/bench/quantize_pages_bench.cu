// Time of quantize_pages and dequantize_pages for one layer's keys: 32,768 tokens (prefill, whole pages) and 64
// sequences that flush 16 tokens each; 8 KV heads, d 128. Median of 20 after a warm-up, microseconds, one JSON object a
// line.
//   quantize_pages_bench
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "kernels/dequantize/dequantize_pages.h"
#include "kernels/quantize/quantize_pages.h"

namespace {

using namespace oscar;
using namespace oscar::kernels;

double median_us(const std::function<void()>& work) {
  cudaEvent_t start, stop;
  cudaEventCreate(&start);
  cudaEventCreate(&stop);
  std::vector<float> times;
  for (int i = 0; i < 23; ++i) {
    cudaEventRecord(start);
    work();
    cudaEventRecord(stop);
    cudaEventSynchronize(stop);
    float ms = 0;
    cudaEventElapsedTime(&ms, start, stop);
    if (i >= 3) times.push_back(1000.0f * ms);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

template <class T>
T* device(const std::vector<T>& host) {
  void* data = nullptr;
  cudaMalloc(&data, host.size() * sizeof(T));
  cudaMemcpy(data, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice);
  return static_cast<T*>(data);
}

}  // namespace

int main() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    std::fprintf(stderr, "no GPU\n");
    return 4;
  }
  cudaDeviceProp gpu{};
  cudaGetDeviceProperties(&gpu, 0);
  constexpr int kHeads = 8, kDim = 128;
  const std::uint8_t widths[4] = {4, 2, 1, 1};
  for (const bool prefill : {true, false}) {
    const int tokens = prefill ? 32768 : 1024, run_tokens = prefill ? 64 : 16;
    std::vector<float> values(static_cast<std::size_t>(tokens) * kHeads * kDim);
    unsigned state = 1;
    for (float& v : values) {  // a sum of uniform numbers is normal enough
      v = 0;
      for (int i = 0; i < 4; ++i)
        v += static_cast<float>((state = state * 1664525u + 1013904223u) >> 8) * 0x1p-23f - 1.0f;
    }
    std::vector<PageRun> runs;
    for (int t = 0; t < tokens; t += run_tokens) runs.push_back({t, run_tokens, t / run_tokens, prefill ? 0 : 16});
    QuantizePagesParams p{};
    p.rows = device(values);
    float* const matrix = device(std::vector<float>(values.begin(), values.begin() + kDim * kDim));
    p.runs = device(runs);
    p.clip = device(std::vector<float>(kHeads, 0.92f));
    p.sigma = device(std::vector<float>(kHeads * 4, 1.0f));
    p.bad = device(std::vector<std::int32_t>{0});
    p.pages = device(std::vector<std::uint8_t>(runs.size() * kHeads * 8192));
    p.run_count = static_cast<int>(runs.size());
    p.kv_heads = kHeads;
    p.matrix_heads = 1;
    for (const bool blocks : {false, true}) {
      p.layout = blocks ? band_side(kDim, widths, 0) : uniform_side(kDim, kDim, false, 0);
      p.page_bytes = 4608;
      double us[2][2];
      for (const bool rotate : {false, true}) {
        p.matrix = rotate ? matrix : nullptr;
        for (const bool search : {false, true}) {
          p.encoder = search ? QuantizeEncoder::kSearch : QuantizeEncoder::kMinMax;
          us[rotate][search] = median_us([&] { quantize_pages(p, nullptr); });
        }
      }
      DequantizePagesParams r{p.pages, p.runs, p.sigma, const_cast<void*>(p.rows), p.layout, p.page_bytes, p.run_count,
                              kHeads,  false,  true};
      const double back = median_us([&] { dequantize_pages(r, nullptr); });
      std::printf(
          "{\"gpu\": \"%s\", \"tokens\": %d, \"run\": %d, \"layout\": \"%s\", \"minmax_us\": %.1f, \"search_us\": "
          "%.1f, "
          "\"rotate_minmax_us\": %.1f, \"rotate_search_us\": %.1f, \"dequantize_us\": %.1f}\n",
          gpu.name, tokens, run_tokens, blocks ? "blocks" : "uniform", us[0][0], us[0][1], us[1][0], us[1][1], back);
    }
  }
  return cudaDeviceSynchronize() == cudaSuccess ? 0 : 1;
}
