// Checks that a collecting run wrote the state from which a run continues. It checks everything before use, so damage
// shows at once and not at the end.
#pragma once

#include "checkpoint/model_config.h"
#include "collect/collect_work.h"
#include "collect/state_check.h"
#include "collect/token_plan.h"

namespace oscar {

// Checks the point, its running sums and every finished layer of the work directory. InputError naming the file and the
// fault; log_info() says where the run continues.
void check_resume_point(const ResumePoint& point, const StateFacts& run, const ModelConfig& config,
                        const TokenPlan& plan, const WorkDirectory& work);

}  // namespace oscar
