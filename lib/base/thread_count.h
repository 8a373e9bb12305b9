// The number of threads of a run that goes on. It comes from a file or from another process, so the machine bounds it.
#pragma once

#include <string>

namespace oscar {

constexpr const char* kThreadsOfRun = "the run was started with";

// Sets ATen's number of threads to `wanted`, with log_info() when it changes. More than the processors of this machine,
// and than the process was started with, become as many, with a warning. reason: "the run was started with".
void use_threads(int wanted, const std::string& reason);

}  // namespace oscar
