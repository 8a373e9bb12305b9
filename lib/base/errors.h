// The error classes of the toolchain. Each class has one exit code.
// Library code throws these; only apps/ converts them to exit codes. A message is one clear sentence that says which
// file or tensor, what was found, what was expected and what to do.
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
  kInterrupted = 130  // SIGINT; work is saved and can resume
};

class Error : public std::runtime_error {
 public:
  // Escapes unsafe characters (foreign_text.h), because a message may quote names and text of files.
  Error(ExitCode code, const std::string& message) : std::runtime_error(escape_text(message)), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// Wrong or contradictory options, or an output that already exists.
struct UsageError : Error {
  explicit UsageError(const std::string& m) : Error(ExitCode::kUsage, m) {}
};
// A file, tensor or row that is damaged, missing, unsupported or from another model.
struct InputError : Error {
  explicit InputError(const std::string& m) : Error(ExitCode::kBadInput, m) {}
};
// A problem of the machine: device, memory, disk, permissions.
struct EnvironmentError : Error {
  explicit EnvironmentError(const std::string& m) : Error(ExitCode::kEnvironment, m) {}
};
// NaN, lack of convergence, loss of orthogonality.
struct NumericalError : Error {
  explicit NumericalError(const std::string& m) : Error(ExitCode::kNumerical, m) {}
};
// SIGINT was received. The message says what was kept. With `resumes`, it also gives the command that continues the
// run.
struct InterruptedError : Error {
  explicit InterruptedError(const std::string& m, bool resumes_ = false)
      : Error(ExitCode::kInterrupted, m), resumes(resumes_) {}
  bool resumes;
};

}  // namespace oscar
