// A command as one of many ranks that torchrun started (distributed/ranks.h): one voice for people, and one end for
// all.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "apps/options/common_options.h"
#include "base/timeline.h"
#include "distributed/byte_gather.h"
#include "distributed/ranks.h"

namespace oscar {

// Runs body(ranks), or body(nullptr) where the process was started alone. Only rank 0 shows progress and messages that
// are no warnings. An error on one rank ends all: the first rank that failed reports it, and all end with its code; a
// rank that died counts as ExitCode::kEnvironment. resume_command: how the same run goes on, read when it is needed.
int run_as_rank(const std::string& resume_command, const std::function<int(Ranks*)>& body);

// How the ranks load `bytes` of weights together: on GPUs, where that takes less time than each for itself; null
// otherwise. hidden: seconds of computing beside which they are loaded. The same on all ranks, which must have GPUs or
// none (EnvironmentError).
std::unique_ptr<ByteGather> gather_of(Ranks* ranks, at::Device device, std::uint64_t bytes, double hidden = 0);

// With -v: the table of each other rank in the log of rank 0, behind its own. Called by all ranks; null: no table.
void log_other_timelines(Timeline* timeline, Ranks* ranks);

// UsageError where torchrun started more than one process of a command that runs alone; what: "oscar-export".
void require_alone(const char* what);

// The command as it was started: alone, or by torchrun.
std::string as_started(const std::string& command);

}  // namespace oscar
