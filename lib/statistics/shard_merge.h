// Adds up the shards of one run (shard.h). Each file records its share in the only part of its metadata:
// parts[0].shard.
#pragma once

#include <string>
#include <vector>

#include "statistics/statistics.h"

namespace oscar {

// True for the statistics of one shard.
bool is_shard(const Statistics& statistics);
// "shard 2 of 3"; only for a shard.
std::string shard_name(const Statistics& statistics);

// The statistics of the full run from all of its shards, in any order; names: their files, for messages. They equal the
// statistics of one run up to the order of FP64 sums, except energy_gram (statistics.h), with the same rows. In place
// of the shards' parts they hold the part of the full run, which lists the shards. InputError for an incomplete set, a
// repeated shard, or mixed runs: other prompts, number of shards, options, versions or models. layers: as in
// merge_statistics().
Statistics merge_shards(std::vector<Statistics> shards, std::vector<std::string> names,
                        std::vector<LayerMoments> layers = {});

}  // namespace oscar
