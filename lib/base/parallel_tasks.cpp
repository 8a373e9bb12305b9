#include "base/parallel.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

#include "base/log.h"

namespace oscar {
namespace {

thread_local bool within_task = false;

}  // namespace

// ATen passes its number of threads to MKL, whose setting holds for the process and also inside a parallel region. So
// it is 1 meanwhile, and this function starts its own threads.
void parallel_tasks(std::int64_t count, const std::function<void(std::int64_t)>& task) {
  if (within_task) {
    for (std::int64_t n = 0; n < count; ++n) task(n);
    return;
  }
  const int allowed = at::get_num_threads();
  const bool inference = c10::InferenceMode::is_enabled();
  std::atomic<std::int64_t> next{0};
  std::atomic<bool> failed{false};
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(count));
  const auto work = [&] {
    const c10::InferenceMode mode(inference);
    at::set_num_threads(1);
    within_task = true;
    while (!failed) {
      const std::int64_t n = next++;
      if (n >= count) break;
      try {
        task(n);
      } catch (...) {
        errors[static_cast<std::size_t>(n)] = std::current_exception();
        failed = true;
      }
    }
    within_task = false;
  };
  {
    std::vector<std::jthread> others;
    for (std::int64_t i = 1; i < std::min<std::int64_t>(allowed, count); ++i) others.emplace_back(work);
    work();
  }
  at::set_num_threads(allowed);
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

void use_threads(int wanted, const std::string& reason) {
  const int own = at::get_num_threads();
  const int most = std::max(own, static_cast<int>(std::thread::hardware_concurrency()));
  if (wanted > most) {
    log_warning(reason + " " + std::to_string(wanted) + " threads, and this machine has " + std::to_string(most) +
                " processors: using as many, so the last digits may differ");
  } else if (wanted != own) {
    log_info("using " + std::to_string(wanted) + " threads, as " + reason);
  }
  const int threads = std::clamp(wanted, 1, most);
  if (threads != own) at::set_num_threads(threads);
}

}  // namespace oscar
