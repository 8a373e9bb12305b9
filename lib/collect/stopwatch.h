// Measures time spent in parts of a computation: on the CPU by the clock, on a GPU by events in the current stream, so
// that measuring does not make the GPU wait.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <utility>
#include <vector>

namespace oscar {

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

}  // namespace oscar
