// Times one launch on the GPU as a serving engine makes it: captured into a CUDA graph, L2 flushed before each replay.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tests/kernels/device_array.h"

namespace oscar::kernels {

// Median time in microseconds of `repeat` replays. launch(stream) returns a cudaError_t; it was tried before.
template <class Launch>
double time_graph(Launch&& launch, int repeat, const DeviceArray<std::uint8_t>& flush, std::size_t flush_bytes) {
  cudaStream_t stream;
  check_cuda(cudaStreamCreate(&stream), "cudaStreamCreate");
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  check_cuda(launch(stream), "launch");
  check_cuda(cudaStreamEndCapture(stream, &graph), "capture");
  check_cuda(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  cudaEvent_t begin, end;
  check_cuda(cudaEventCreate(&begin), "event");
  check_cuda(cudaEventCreate(&end), "event");
  std::vector<double> times;
  for (int i = 0; i < repeat + 5; ++i) {
    check_cuda(cudaMemsetAsync(flush.get(), i, flush_bytes, stream), "flush");
    check_cuda(cudaEventRecord(begin, stream), "event");
    check_cuda(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
    check_cuda(cudaEventRecord(end, stream), "event");
    check_cuda(cudaEventSynchronize(end), "event");
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, begin, end), "event");
    if (i >= 5) times.push_back(ms * 1e3);
  }
  cudaEventDestroy(begin), cudaEventDestroy(end);
  cudaGraphExecDestroy(executable), cudaGraphDestroy(graph), cudaStreamDestroy(stream);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace oscar::kernels
