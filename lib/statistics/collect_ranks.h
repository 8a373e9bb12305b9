// Collecting with many processes at once (distributed/ranks.h): each rank collects one share of the run (shard.h) in a
// work directory of its own, and rank 0 adds up the shares as `oscar-collect merge` does, in the order of the ranks, so
// that the same number of ranks gives the same bytes, and those of --shard.
#pragma once

#include <cstdint>
#include <optional>

#include "statistics/collect.h"
#include "statistics/collect_work.h"

namespace oscar {

// InputError on every rank where one has another model, other prompts, options or version than rank 0. identity: of
// run_identity().
void require_same_everywhere(Ranks& ranks, const Json& identity);

// Whether all ranks begin with this layer, so that they can load weights together; -1: this rank loads none.
bool start_together(Ranks& ranks, std::int64_t layer);

// Hands the share to rank 0, which writes options.output from all of them and returns what it holds; the others get
// nullopt when it is written. InterruptedError as collect(); errors of merge_shards().
std::optional<Statistics> deliver_share(const Statistics& share, const CollectOptions& options,
                                        const WorkDirectory& work);

// After each rank has removed its own work directory: what is then left of the run's, if nothing else is in it.
void remove_run_directory(const CollectOptions& options);

}  // namespace oscar
