// Collecting with many processes at once (distributed/ranks.h). Each rank collects one share of the run (shard.h) in
// its own work directory. Rank 0 merges the shares as `oscar-collect merge` does, in the order of the ranks. The same
// number of ranks gives the same bytes, which also equal the merged bytes of --shard.
#pragma once

#include <optional>

#include "collect/collect.h"
#include "collect/collect_work.h"

namespace oscar {

// InputError on every rank if one rank has another model, other prompts, options or version than rank 0. identity: from
// run_identity().
void require_same_everywhere(Ranks& ranks, const Json& identity);

// Brings what this rank has collected to rank 0, which reads the files of other ranks on its machine, or receives them.
// Rank 0 writes options.output from all shares and returns its content; the other ranks get nullopt once it is written.
// InterruptedError as collect(); errors of merge_shards().
std::optional<Statistics> merge_ranks(const CollectOptions& options, const WorkDirectory& work, Statistics share);

// Call after each rank has removed its own work directory. Removes the rest of the run's directory if it holds nothing
// else.
void remove_run_directory(const CollectOptions& options);

}  // namespace oscar
