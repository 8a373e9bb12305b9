#include "collect/stopwatch.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "base/clock.h"

namespace oscar {

c10::Event Stopwatch::mark() const {
  c10::Event event(device_.type(), c10::EventFlag::BACKEND_DEFAULT);  // with timing
  event.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  return event;
}

void Stopwatch::start() {
  if (!device_.is_cuda()) {
    begun_ = steady_seconds();
    return;
  }
  parts_.emplace_back(mark(), c10::Event(device_.type(), c10::EventFlag::BACKEND_DEFAULT));
}

void Stopwatch::stop() {
  if (!device_.is_cuda()) {
    sum_ += steady_seconds() - begun_;
    return;
  }
  parts_.back().second = mark();
}

double Stopwatch::seconds() {
  for (auto& [begin, end] : parts_) {
    end.synchronize();
    sum_ += 1e-3 * begin.elapsedTime(end);
  }
  parts_.clear();
  return sum_;
}

}  // namespace oscar
