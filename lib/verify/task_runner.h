// Runs task prompts through methods and records which references they find.
#pragma once

#include <functional>
#include <vector>

#include "cache/kv_method.h"
#include "distributed/ranks.h"
#include "model/decoder.h"
#include "report/report.h"
#include "tasks/task.h"
#include "verify/verify_work.h"

namespace oscar {

using ServedTask = std::function<std::vector<bool>(const TaskPrompt&)>;  // which references it finds

// [methods] scores of one task set. path: prefill (all tokens at once, simulated) or decode (the paged cache). Methods
// skip prompts that the BF16 baseline does not solve, and these do not count. work: null, or where answers are saved
// after each prompt and reloaded from an earlier run. ranks: null, or the ranks among which prompts alternate; all get
// the scores. served: null, or what a server answers, whose score follows those of the methods.
std::vector<TaskScore> run_task(Decoder& decoder, const std::vector<const KvMethod*>& methods, const KvMethod& baseline,
                                const TaskSet& set, const std::string& path, const VerifyWork* work = nullptr,
                                Ranks* ranks = nullptr, const ServedTask& served = nullptr);

}  // namespace oscar
