// Is the state that a collecting run would go on from one that such a run has written? Checked as a whole before
// anything of it is used: damage shows now, not at the end.
#pragma once

#include "checkpoint/model_config.h"
#include "statistics/collect_work.h"
#include "statistics/state_check.h"
#include "statistics/token_plan.h"

namespace oscar {

// The point, its running sums and every finished layer of the work directory. InputError naming the file and the fault;
// says with log_info() where the run goes on.
void check_resume_point(const ResumePoint& point, const StateFacts& run, const ModelConfig& config,
                        const TokenPlan& plan, const WorkDirectory& work);

}  // namespace oscar
