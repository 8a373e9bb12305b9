// Collecting with many processes at once (distributed/ranks.h): each rank collects one share of the run (shard.h) in a
// work directory of its own, and rank 0 adds up the shares as `oscar-collect merge` does, in the order of the ranks, so
// that the same number of ranks gives the same bytes, and those of --shard.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "statistics/collect.h"
#include "statistics/collect_work.h"

namespace oscar {

// InputError on every rank where one has another model, other prompts, options or version than rank 0. identity: of
// run_identity().
void require_same_everywhere(Ranks& ranks, const Json& identity);

// What this rank collects on its way to rank 0. On one machine ranks leave each layer in their work directories, and
// rank 0 adds it up beside the layers that follow, so that little is left to do at the end.
class ShareDelivery {
 public:
  // Called by all ranks. layer: with which this one begins; -1: it loads none. tokens: of its share.
  ShareDelivery(const CollectOptions& options, const WorkDirectory& work, std::int64_t layer, std::int64_t tokens);
  ~ShareDelivery();

  // Whether all ranks begin with the same layer, so that they can load weights together.
  bool together() const;
  // A layer that is done, from any one thread.
  void add(std::int64_t layer, const LayerMoments& moments);
  // Hands over the share with what was not added. Rank 0 writes options.output from all shares and returns what it
  // holds; the others get nullopt when it is written. InterruptedError as collect(); errors of merge_shards().
  std::optional<Statistics> finish(Statistics share);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// After each rank has removed its own work directory: what is then left of the run's, if nothing else is in it.
void remove_run_directory(const CollectOptions& options);

}  // namespace oscar
