// What a collecting run records and prints about itself.
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

// What a collecting run prints about its layers, and the final form of the statistics. Both need only the moments.

// Traces of a layer's queries and outputs, and the share of each trace in its eight largest eigenvalues.
void describe_layer(const LayerMoments& moments, std::int64_t layer, LayerReport& report);

// Prints the line of a finished layer. layers: number of layers of the model.
void print_layer(const LayerReport& report, std::int64_t layers);

// If prompts are too short for any pair outside the windows, removes the metrics instead of leaving zeros. Returns the
// number of queries with a key outside the windows, from the layer with the most.
double drop_empty_far_pairs(Statistics& statistics);

// Puts the merged statistics of all ranks into the report of rank 0. report.layers match the statistics' layers by
// index.
void describe_whole(const Statistics& whole, CollectReport& report);

}  // namespace oscar
