// SIGINT, SIGTERM and SIGHUP as a flag that long loops poll between steps.
#pragma once

namespace oscar {

// A second SIGINT or SIGTERM, half a second or more later, ends the process with 130. What was ignored stays ignored.
void install_interrupt_handler();
bool interrupt_requested();
// The same as the first signal; for a reason that the process finds out by itself.
void request_interrupt();

// While one lives, on any thread, the first request already ends the process: for calls into libraries that run for
// long and cannot be told to stop. Files appear under their names only when they are whole (base/atomic_file), and
// temporary ones are removed by the next run, so that nothing computed is lost.
class EndsAtOnce {
 public:
  EndsAtOnce();
  ~EndsAtOnce();
  EndsAtOnce(const EndsAtOnce&) = delete;
  EndsAtOnce& operator=(const EndsAtOnce&) = delete;
};

}  // namespace oscar
