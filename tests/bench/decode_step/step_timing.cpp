#include "tests/bench/decode_step/step_timing.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <cstdio>

namespace oscar::bench {
namespace {

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

}  // namespace

std::optional<double> time_step(DecodeStep& step, int repeats) {
  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
  const c10::cuda::CUDAStreamGuard guard(stream);
  at::cuda::CUDAGraph graph;
  try {
    for (int i = 0; i < 2; ++i) step.run();
    stream.synchronize();
    graph.capture_begin();
    step.run();
    graph.capture_end();
  } catch (const c10::Error& e) {
    std::fprintf(stderr, "%s\n", e.what_without_backtrace());
    return std::nullopt;
  }
  std::vector<double> times;
  cudaEvent_t begin, end;
  cudaEventCreate(&begin), cudaEventCreate(&end);
  for (int i = 0; i < repeats + 3; ++i) {
    cudaEventRecord(begin, stream);
    graph.replay();
    cudaEventRecord(end, stream);
    cudaEventSynchronize(end);
    float ms = 0;
    if (cudaEventElapsedTime(&ms, begin, end) != cudaSuccess) throw std::runtime_error("cudaEventElapsedTime failed");
    if (i >= 3) times.push_back(ms);
  }
  cudaEventDestroy(begin), cudaEventDestroy(end);
  return median(times);
}

Json time_parts(DecodeStep& step, const ModelConfig& config, const StepShape& shape, const Rates& rates, int repeats) {
  Json parts = Json::array();
  double sum = 0;
  for (const StepPart part : kStepParts) {
    if ((shape.batch == 1 && fused_for_one(part)) || (!shape.int2 && part == StepPart::kQuantize)) continue;
    step.only(part);
    const double ms = time_step(step, repeats).value();
    const PartCost cost = part_cost(config, part, shape);
    sum += ms;
    parts.push_back(Json{{"part", to_string(part)},
                         {"ms", ms},
                         {"least_ms", least_ms(cost, rates)},
                         {"weight_bytes", cost.weight_bytes},
                         {"cache_bytes", cost.cache_bytes},
                         {"activation_bytes", cost.activation_bytes},
                         {"operations", cost.operations}});
  }
  step.only(std::nullopt);
  return Json{{"parts", parts}, {"sum_of_parts_ms", sum}};
}

void print_parts(const Json& parts, const std::string& title, double step_ms, double least_ms) {
  std::printf("%s\n  %-36s %9s %9s %8s %8s %8s\n", title.c_str(), "part", "ms", "least ms", "share", "TB/s", "TFLOP/s");
  for (const Json& p : parts["parts"]) {
    const double ms = p["ms"].get<double>(), bytes = p["weight_bytes"].get<double>() + p["cache_bytes"].get<double>() +
                                                     p["activation_bytes"].get<double>();
    std::printf("  %-36s %9.3f %9.3f %7.1f%% %8.2f %8.1f\n", p["part"].get<std::string>().c_str(), ms,
                p["least_ms"].get<double>(), 100 * ms / step_ms, bytes / ms / 1e9,
                p["operations"].get<double>() / ms / 1e9);
  }
  const double sum = parts["sum_of_parts_ms"].get<double>();
  std::printf("  %-36s %9.3f %9.3f\n  the parts add up to %.1f %% of the step; the roofline is %.1f %% of it\n",
              "the whole step", step_ms, least_ms, 100 * sum / step_ms, 100 * least_ms / step_ms);
  std::fflush(stdout);
}

}  // namespace oscar::bench
