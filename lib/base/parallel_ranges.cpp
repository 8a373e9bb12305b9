#include "base/parallel.h"

#include <ATen/Parallel.h>

#include <exception>
#include <limits>
#include <mutex>

namespace oscar {

// The one file that is compiled with OpenMP. In a file without it, at::parallel_for() compiles to a plain loop.
void parallel_ranges(std::int64_t count, std::int64_t grain,
                     const std::function<void(std::int64_t, std::int64_t)>& part) {
  std::mutex mutex;
  std::int64_t lowest = std::numeric_limits<std::int64_t>::max();
  std::exception_ptr error;
  at::parallel_for(0, count, grain, [&](std::int64_t begin, std::int64_t end) {
    try {
      part(begin, end);
    } catch (...) {
      const std::scoped_lock lock(mutex);
      if (begin < lowest) lowest = begin, error = std::current_exception();
    }
  });
  if (error) std::rethrow_exception(error);
}

}  // namespace oscar
