// The passes of a collecting run (collect.h) over a plan with at least one sequence: forward layer by layer, then
// the statistics are written.
#pragma once

#include <string>

#include "base/errors.h"
#include "statistics/collect.h"
#include "statistics/collect_work.h"

namespace oscar {

// From where the work directory's last state ends, or from the beginning. fingerprint: of the checkpoint. Errors as
// collect().
CollectReport run_collector(const Checkpoint& checkpoint, const PromptSet& prompts, const TokenPlan& plan,
                            const CollectOptions& options, const std::string& fingerprint, WorkDirectory& work);

// Says where the state is and how to go on.
InterruptedError interrupted_run(const CollectOptions& options);

}  // namespace oscar
