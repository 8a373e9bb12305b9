// Wall time from a monotonic clock, in seconds.
#pragma once

#include <algorithm>
#include <chrono>

namespace oscar {

inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <typename Work>
double seconds_of(const Work& work) {
  const double start = steady_seconds();
  work();
  return steady_seconds() - start;
}

// The faster of two calls after one that warms up: other work on the machine only adds time.
template <typename Work>
double warm_seconds(const Work& work) {
  work();
  return std::min(seconds_of(work), seconds_of(work));
}

}  // namespace oscar
