// Runs task prompts through methods and marks which are solved.
#pragma once

#include <vector>

#include "cache/kv_method.h"
#include "distributed/ranks.h"
#include "model/decoder.h"
#include "report/report.h"
#include "tasks/task.h"
#include "verify/verify_work.h"

namespace oscar {

// [methods] scores of one task set. path: prefill (all tokens at once, simulated) or decode (the paged cache). Prompts
// that the BF16 baseline does not solve are not run on the methods and do not count. work: null, or where answers are
// saved after each prompt and where an earlier run's are taken from. ranks: null, or those that share the prompts, one
// after another; all get the scores.
std::vector<TaskScore> run_task(Decoder& decoder, const std::vector<const KvMethod*>& methods, const KvMethod& baseline,
                                const TaskSet& set, const std::string& path, const VerifyWork* work = nullptr,
                                Ranks* ranks = nullptr);

}  // namespace oscar
