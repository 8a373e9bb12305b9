// What a run records about itself: in its work directory, to decide whether it may be resumed, and in the statistics.
#pragma once

#include "base/json.h"
#include "collect/collect.h"

namespace oscar {

// {tool_version, model, prompts, options, threads}: everything that determines the resulting bytes.
Json run_identity(const std::string& fingerprint, const PromptSet& prompts, const CollectOptions& options);

// Statistics with everything but the layers: model facts, token counts and metadata (schemas/statistics.schema.json).
Statistics statistics_header(const Checkpoint& checkpoint, const std::string& fingerprint, const PromptSet& prompts,
                             const TokenPlan& plan, const CollectOptions& options, std::int64_t rows_kept);

// What a shard without any sequence writes: facts of the model and of the run, layers without sums.
Statistics empty_shard(const Checkpoint& checkpoint, const std::string& fingerprint, const PromptSet& prompts,
                       const TokenPlan& plan, const CollectOptions& options);

}  // namespace oscar
