#include "base/budget.h"

#include <algorithm>
#include <ctime>

#include "base/files.h"
#include "base/interrupt.h"

namespace oscar {
namespace {

constexpr std::uint64_t kPollSteps = 10'000'000;  // steps between two checks of the interrupt flag, about ten
                                                  // milliseconds

}  // namespace

Budget::Budget(std::string what, Limits limits) : what_(std::move(what)), limits_(limits), outer_(current_) {
  current_ = {this, 0, std::min(kPollSteps, limits.steps), 0, limits.bytes};
}

Budget::~Budget() { current_ = outer_; }

void Budget::check() {
  if (interrupt_requested()) {
    throw InterruptedError("interrupted while the input was read; nothing was written, run the command again");
  }
  const std::uint64_t next = current_.steps + kPollSteps;
  const Budget* owner = current_.owner;
  if (owner == nullptr) {
    current_.check_at = next;
    return;
  }
  if (current_.steps > owner->limits_.steps) {
    throw BudgetError(owner->what_ + " takes too much work (more than " +
                      std::to_string(owner->limits_.steps / 1'000'000) + " million steps)");
  }
  if (current_.bytes > current_.most_bytes) {
    throw BudgetError(owner->what_ + " takes too much memory (more than " + format_bytes(owner->limits_.bytes) + ")");
  }
  current_.check_at = std::min(next, owner->limits_.steps + 1);  // only here: an exhausted budget stays exhausted
}

std::uint64_t Budget::thread_time() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(now.tv_nsec);
}

std::uint64_t Budget::spend_time(std::uint64_t since) {
  const std::uint64_t now = thread_time();
  spend(now - since);
  return now;
}

}  // namespace oscar
