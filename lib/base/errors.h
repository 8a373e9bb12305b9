// The error hierarchy of the toolchain. Each class is one row of the exit-code table.
// Library code throws these; only apps/ turns them into exit codes. A message is one clear sentence:
// which file or tensor, what was found, what was expected, what to do.
#pragma once

#include <stdexcept>
#include <string>

#include "base/foreign_text.h"

namespace oscar {

enum class ExitCode : int {
  kDone = 0,
  kGateFailed = 1,    // a quality gate of oscar-verify failed
  kUsage = 2,         // wrong or contradictory options
  kBadInput = 3,      // bad input or format
  kEnvironment = 4,   // no GPU, out of memory, disk full, unwritable directory
  kNumerical = 5,     // numerical failure
  kInterrupted = 130  // SIGINT; work is saved and can be resumed
};

class Error : public std::runtime_error {
 public:
  // What is unsafe to show in the message is escaped here (foreign_text.h): it may quote names and text of files.
  Error(ExitCode code, const std::string& message) : std::runtime_error(escape_text(message)), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// Wrong or contradictory options, an output that exists already.
struct UsageError : Error {
  explicit UsageError(const std::string& m) : Error(ExitCode::kUsage, m) {}
};
// A file, tensor or row that is damaged, missing, of another model or of an unsupported kind.
struct InputError : Error {
  explicit InputError(const std::string& m) : Error(ExitCode::kBadInput, m) {}
};
// The machine: device, memory, disk, permissions.
struct EnvironmentError : Error {
  explicit EnvironmentError(const std::string& m) : Error(ExitCode::kEnvironment, m) {}
};
// NaN, lack of convergence, loss of orthogonality.
struct NumericalError : Error {
  explicit NumericalError(const std::string& m) : Error(ExitCode::kNumerical, m) {}
};
// SIGINT was received; the message says what is kept. `resumes`: and the command that goes on with it.
struct InterruptedError : Error {
  explicit InterruptedError(const std::string& m, bool resumes_ = false)
      : Error(ExitCode::kInterrupted, m), resumes(resumes_) {}
  bool resumes;
};

}  // namespace oscar
