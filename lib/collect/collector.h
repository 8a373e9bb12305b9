// The passes of a collecting run (collect.h) over a plan with at least one sequence: forward layer by layer, then
// writing the statistics.
#pragma once

#include <string>

#include "base/errors.h"
#include "collect/collect.h"
#include "collect/collect_work.h"

namespace oscar {

// Continues from the last state of the work directory, or starts from the beginning. fingerprint: of the checkpoint.
// Errors as collect().
CollectReport run_collector(const Checkpoint& checkpoint, const PromptSet& prompts, const TokenPlan& plan,
                            const CollectOptions& options, const std::string& fingerprint, WorkDirectory& work);

// The error that says where the state is and how to continue.
InterruptedError interrupted_run(const CollectOptions& options);

}  // namespace oscar
