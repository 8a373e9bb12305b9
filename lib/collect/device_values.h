// Numbers and sums that a device computes, and the time that it takes, read without making it wait.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <optional>
#include <utility>
#include <vector>

#include "statistics/statistics.h"

namespace oscar {

// A number that a device computes and the CPU reads later. Its copy to the CPU begins at once, and value() waits for
// it, so the device does not idle meanwhile.
class LateNumber {
 public:
  explicit LateNumber(const at::Tensor& number);  // one FP64 element, on any device
  double value() const;

 private:
  at::Tensor copy_;
  std::optional<c10::Event> copied_;
};

// Measures time spent in parts of a computation: on the CPU by the clock, on a GPU by events in the current stream, so
// that measuring does not make the GPU wait.
class Stopwatch {
 public:
  explicit Stopwatch(at::Device device) : device_(device) {}
  void start();
  void stop();
  double seconds();  // sum of all finished parts; on a GPU it waits for the last one

 private:
  c10::Event mark() const;

  at::Device device_;
  double begun_ = 0, sum_ = 0;
  std::vector<std::pair<c10::Event, c10::Event>> parts_;
};

// Copies the sums of a finished layer from a device to the CPU.
// Keeps page-locked memory of the size of a layer between calls. The driver copies pageable memory in pieces through
// its own page-locked buffer, and the device waits while each new page is first touched.
class LayerCopier {
 public:
  void to_cpu(LayerMoments& layer);  // gives each tensor its own CPU memory; waits for the current stream

 private:
  at::Tensor locked_;  // bytes
};

}  // namespace oscar
