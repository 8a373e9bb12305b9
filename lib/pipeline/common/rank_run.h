// Runs a command as one of several ranks started by torchrun (distributed/ranks.h), with one set of messages and a
// common end.
#pragma once

#include <functional>
#include <string>

#include "base/timeline.h"
#include "distributed/ranks.h"

namespace oscar {

// Runs body(ranks), or body(nullptr) for a single process. Only rank 0 shows progress and messages other than warnings.
// An error on one rank ends all of them. The first failing rank reports it, and all end with its code; a dead rank
// counts as ExitCode::kEnvironment. resume_command: continues the same run; read only if needed.
int run_as_rank(const std::string& resume_command, const std::function<int(Ranks*)>& body);

// EnvironmentError unless all ranks compute on GPUs, or all on CPUs. Null: one process.
void require_alike(Ranks* ranks, at::Device device);

// With -v: logs each other rank's table on rank 0, after its own. All ranks call it; null: no table.
void log_other_timelines(Timeline* timeline, Ranks* ranks);

// UsageError if torchrun started more than one process of a single-process command; what: "oscar-export".
void require_alone(const char* what);

// The command as it was started: directly or with torchrun.
std::string as_started(const std::string& command);

}  // namespace oscar
