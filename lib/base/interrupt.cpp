#include "base/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <csignal>

#include "base/clock.h"

namespace oscar {
namespace {

// `timeout` and shells may send one request to both the process and its group. Further requests within this time count
// as the same one.
constexpr double kSameRequestSeconds = 0.5;
constexpr int kInterruptedCode = 130;

std::atomic<bool> g_requested{false}, g_signalled{false};
std::atomic<double> g_first{0.0};
std::atomic<int> g_end_at_once{0};  // number of live EndsAtOnce objects
static_assert(std::atomic<double>::is_always_lock_free, "a signal handler stores it");
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler reads it");

extern "C" void on_signal(int number) {
  if (g_end_at_once.load() > 0) {
    constexpr char kMessage[] = "interrupted while a text was split into tokens; run the command again\n";
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kMessage, sizeof kMessage - 1);
    _exit(kInterruptedCode);
  }
  g_requested.store(true);
  if (!g_signalled.exchange(true)) {
    g_first.store(steady_seconds());
    return;
  }
  // A closing terminal may send any number of SIGHUP, a spent CPU limit sends one SIGXCPU each second; they never
  // interrupt the saving of state.
  if (number != SIGHUP && number != SIGXCPU && steady_seconds() - g_first.load() > kSameRequestSeconds)
    _exit(kInterruptedCode);
}

}  // namespace

void install_interrupt_handler() {
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = on_signal;
  constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGXCPU};
  for (const int number : kSignals) {
    // A signal that was ignored (nohup, a background job) stays ignored.
    if (::sigaction(number, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) continue;
    ::sigaction(number, &action, nullptr);
  }
  action.sa_handler = SIG_IGN;
  ::sigaction(SIGXFSZ, &action, nullptr);  // a write beyond the limit of file sizes fails, as on a full disk
}

EndsAtOnce::EndsAtOnce() { g_end_at_once.fetch_add(1); }
EndsAtOnce::~EndsAtOnce() { g_end_at_once.fetch_sub(1); }

bool interrupt_requested() { return g_requested.load(); }
void request_interrupt() { g_requested.store(true); }

}  // namespace oscar
