#include "apps/process_setup.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>

namespace oscar {
namespace {

constexpr std::size_t kStackBytes = std::size_t{8} << 20;  // Linux's default, which libraries rely on

struct Call {
  const std::function<int()>* body;
  int code;
};

void* run_call(void* argument) {
  auto* call = static_cast<Call*>(argument);
  call->code = (*call->body)();
  return nullptr;
}

}  // namespace

void open_standard_descriptors() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) != -1 || errno != EBADF) continue;
    // The lowest free descriptor is this one, because all lower ones are open.
    if (::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd) std::abort();
  }
}

int with_enough_stack(const std::function<int()>& body) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= kStackBytes) {
    return body();
  }
  pthread_attr_t attributes;
  pthread_t thread;
  Call call{&body, 0};
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setstacksize(&attributes, kStackBytes);
  ::pthread_setattr_default_np(&attributes);  // for threads started by libraries
  const bool started = ::pthread_create(&thread, &attributes, run_call, &call) == 0;
  ::pthread_attr_destroy(&attributes);
  if (!started) return body();
  ::pthread_join(thread, nullptr);
  return call.code;
}

void end_process(int code) {
  std::cout.flush();
  std::fflush(nullptr);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  std::exit(code);  // runs the leak check
#else
  std::_Exit(code);
#endif
}

double process_seconds() {
  // Field 22 of proc(5): ticks from boot to the start. The name, field 2, is in parentheses and may contain
  // parentheses.
  std::ifstream file("/proc/self/stat");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  std::istringstream fields(text.substr(text.rfind(')') == std::string::npos ? text.size() : text.rfind(')') + 1));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  double ticks = 0;
  timespec now{};
  if (!(fields >> ticks) || ::clock_gettime(CLOCK_BOOTTIME, &now) != 0) return 0;
  const double seconds = static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) -
                         ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
  return seconds > 0 ? seconds : 0;
}

}  // namespace oscar
