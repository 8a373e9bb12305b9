// Limits the work and memory that untrusted input may cost. Every reader of such input uses it: JSON, templates,
// regular expressions, tokenizers.
// A reader opens a Budget. The code that it calls charges its work to the innermost budget of the thread. Any input
// therefore ends with an error after a few seconds at most. A charge also checks for Ctrl-C and SIGTERM.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "base/errors.h"

namespace oscar {

// The reader needs more work or memory than its budget allows.
struct BudgetError : InputError {
  using InputError::InputError;
};

class Budget;

namespace detail {
struct BudgetAccount {
  const Budget* owner = nullptr;
  std::uint64_t steps = 0, check_at = 0;
  std::uint64_t bytes = 0, most_bytes = std::numeric_limits<std::uint64_t>::max();
};
}  // namespace detail

class Budget {
 public:
  // A step is about one nanosecond of one core. `bytes` counts every allocation and never goes down.
  struct Limits {
    std::uint64_t steps, bytes;
  };

  // `what` is the subject of the message: "<what> takes too much work (more than 3000 million steps)".
  Budget(std::string what, Limits limits);
  ~Budget();
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  // BudgetError when the innermost budget is used up, InterruptedError after an interrupt request. Without a budget on
  // this thread, only the latter.
  static void spend(std::uint64_t steps) {
    current_.steps += steps;
    if (current_.steps >= current_.check_at) check();
  }
  static void hold(std::uint64_t bytes) {
    current_.bytes += bytes;
    if (current_.bytes > current_.most_bytes) check();
  }

  // For engines that cannot count steps: CPU time of this thread [ns]. One nanosecond is charged as one step.
  static std::uint64_t thread_time();
  // Charges the time since `since`; returns the time now.
  static std::uint64_t spend_time(std::uint64_t since);

 private:
  static void check();

  using Account = detail::BudgetAccount;
  static inline constinit thread_local Account current_{};
  const std::string what_;
  const Limits limits_;
  const Account outer_;
};

}  // namespace oscar
