// Wall time from a monotonic clock, in seconds.
#pragma once

#include <chrono>

namespace oscar {

inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace oscar
