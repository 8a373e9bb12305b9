#include "base/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <csignal>

namespace oscar {
namespace {
std::atomic<int> g_requests{0};

extern "C" void on_signal(int) {
  if (g_requests.fetch_add(1) >= 1) _exit(130);
}
}  // namespace

void install_interrupt_handler() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupt_requested() { return g_requests.load() > 0; }

}  // namespace oscar
