#include "collect/stopwatch.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>

namespace oscar {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

c10::Event Stopwatch::mark() const {
  c10::Event event(device_.type(), c10::EventFlag::BACKEND_DEFAULT);  // with timing
  event.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  return event;
}

void Stopwatch::start() {
  if (!device_.is_cuda()) {
    begun_ = now();
    return;
  }
  parts_.emplace_back(mark(), c10::Event(device_.type(), c10::EventFlag::BACKEND_DEFAULT));
}

void Stopwatch::stop() {
  if (!device_.is_cuda()) {
    sum_ += now() - begun_;
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
