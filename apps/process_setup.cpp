#include "apps/process_setup.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>

namespace oscar {
namespace {

constexpr std::size_t kStackBytes = std::size_t{8} << 20;  // what Linux gives by default, and libraries count on

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
    // The lowest free descriptor is this one, as those below it are open.
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
  ::pthread_setattr_default_np(&attributes);  // of the threads that libraries start
  const bool started = ::pthread_create(&thread, &attributes, run_call, &call) == 0;
  ::pthread_attr_destroy(&attributes);
  if (!started) return body();
  ::pthread_join(thread, nullptr);
  return call.code;
}

}  // namespace oscar
