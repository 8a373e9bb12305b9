// Adds up the shards of one run (shard.h). Each file records its share in the only part of its metadata:
// parts[0].shard.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
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
// repeated shard, or mixed runs: other prompts, number of shards, options, versions or models.
Statistics merge_shards(std::vector<Statistics> shards, std::vector<std::string> names);

// Merges the sums of one layer from several parts.

using LayerParts = std::vector<const LayerMoments*>;  // the same layer of each part

struct RowSource {
  std::size_t part;
  std::int64_t row;
};

// The union of bottom-k samples, cut to the smallest k, is the bottom-k sample of all tokens.
std::vector<RowSource> merged_rows(const LayerParts& parts, std::int64_t requested);

// Adds up in the order of the parts, so the same parts give the same bits. rows: empty, or the rows of the merged
// sample.
LayerMoments merge_layer(const LayerParts& parts, const std::vector<RowSource>& rows);

// The sum; undefined if one of the tensors is undefined.
at::Tensor sum_if_all(const std::vector<at::Tensor>& tensors);

}  // namespace oscar
