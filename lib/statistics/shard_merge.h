// Adding up the shards of one run (shard.h). Each file records its share in the one part of its metadata:
// parts[0].shard.
#pragma once

#include <string>
#include <vector>

#include "statistics/statistics.h"

namespace oscar {

// Are these the statistics of one shard?
bool is_shard(const Statistics& statistics);
// "shard 2 of 3"; only of a shard.
std::string shard_name(const Statistics& statistics);

// The statistics of the whole run from all of its shards, in any order; names: their files, for messages. They equal
// those of one run up to the order of FP64 sums, energy_gram apart (statistics.h), with the same rows and, in place of
// the shards' parts, the part of the whole run, which lists them. InputError for a set that is not complete, has a
// shard twice, or mixes runs: other prompts, number of shards, options, versions or models.
// layers: as merge_statistics() has them.
Statistics merge_shards(std::vector<Statistics> shards, std::vector<std::string> names,
                        std::vector<LayerMoments> layers = {});

}  // namespace oscar
