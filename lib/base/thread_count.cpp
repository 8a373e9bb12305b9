#include "base/thread_count.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <thread>

#include "base/log.h"

namespace oscar {

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
