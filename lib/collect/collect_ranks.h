// Collecting with many processes at once (distributed/ranks.h). Each rank collects one share of the run (shard.h) in
// its own work directory. Rank 0 merges the shares as `oscar-collect merge` does, in the order of the ranks. The same
// number of ranks gives the same bytes, which also equal the merged bytes of --shard.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "collect/collect.h"
#include "collect/collect_work.h"

namespace oscar {

// InputError on every rank if one rank has another model, other prompts, options or version than rank 0. identity: from
// run_identity().
void require_same_everywhere(Ranks& ranks, const Json& identity);

// Brings what this rank collects to rank 0. On one machine each rank leaves every layer in its work directory. Rank 0
// merges it while later layers run, so little work is left at the end.
class ShareDelivery {
 public:
  // All ranks call it. layer: this rank's first layer; -1: it loads none. tokens: tokens of its share.
  ShareDelivery(const CollectOptions& options, const WorkDirectory& work, std::int64_t layer, std::int64_t tokens);
  ~ShareDelivery();

  // Adds a finished layer; may be called from any one thread.
  void add(std::int64_t layer, const LayerMoments& moments);
  // Hands over the share with everything not yet added. Rank 0 writes options.output from all shares and returns its
  // content; the other ranks get nullopt once it is written. InterruptedError as collect(); errors of merge_shards().
  std::optional<Statistics> finish(Statistics share);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Call after each rank has removed its own work directory. Removes the rest of the run's directory if it holds nothing
// else.
void remove_run_directory(const CollectOptions& options);

}  // namespace oscar
