// What a collecting run records about itself.
#pragma once

#include "base/json.h"
#include "collect/collect.h"
#include "statistics/statistics.h"

namespace oscar {

// What a run records about itself: in its work directory, to decide whether it may be resumed, and in the statistics.

// {tool_version, model, prompts, options, threads}: everything that determines the resulting bytes.
Json run_identity(const std::string& fingerprint, const PromptSet& prompts, const CollectOptions& options);

// Statistics with everything but the layers: model facts, token counts and metadata (schemas/statistics.schema.json).
Statistics statistics_header(const Checkpoint& checkpoint, const std::string& fingerprint, const PromptSet& prompts,
                             const TokenPlan& plan, const CollectOptions& options, std::int64_t rows_kept);

// What a shard without any sequence writes: facts of the model and of the run, layers without sums.
Statistics empty_shard(const Checkpoint& checkpoint, const std::string& fingerprint, const PromptSet& prompts,
                       const TokenPlan& plan, const CollectOptions& options);

// The number of queries with a key outside the windows, from the layer with the most; 0 without metrics of such pairs.
double far_queries(const Statistics& statistics);
// If prompts are too short for any pair outside the windows, removes the metrics instead of leaving zeros.
void drop_empty_far_pairs(Statistics& statistics);

}  // namespace oscar
