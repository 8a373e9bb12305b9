// Turns SIGINT, SIGTERM, SIGHUP and SIGXCPU into a flag that long loops poll between steps.
#pragma once

namespace oscar {

// A second SIGINT or SIGTERM at least half a second later ends the process with exit code 130. Signals that were
// ignored stay ignored. A write beyond the limit of file sizes (SIGXFSZ) is an error of that write.
void install_interrupt_handler();
bool interrupt_requested();
// Has the effect of the first signal, for a reason that the process itself detects.
void request_interrupt();

// While an object of this class lives on any thread, the first request ends the process at once. It covers long library
// calls that cannot be stopped. Nothing computed is lost: files get their names only when complete (base/atomic_file).
// The next run removes temporary files.
class EndsAtOnce {
 public:
  EndsAtOnce();
  ~EndsAtOnce();
  EndsAtOnce(const EndsAtOnce&) = delete;
  EndsAtOnce& operator=(const EndsAtOnce&) = delete;
};

}  // namespace oscar
