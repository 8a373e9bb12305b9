#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "collect/collect_phases.h"
#include "collect/collect_ranks.h"
#include "statistics/shard_merge.h"

namespace oscar {

std::optional<Statistics> merge_ranks(const CollectOptions& options, const WorkDirectory& work, Statistics share) {
  const Timeline::Phase delivering(options.timeline, phase::kRanks);
  Ranks& ranks = *options.ranks;
  const bool one_machine = ranks.environment().local_count == ranks.count();
  const fs::path own = work.file(share_name(0));
  if (!ranks.is_first()) save_statistics(share, own, /*durable=*/false);
  const std::vector<std::string> files = ranks.all_gather(fs::absolute(own).string());  // after all are written
  std::optional<Statistics> whole;
  if (ranks.is_first()) {
    std::vector<Statistics> shares;
    shares.push_back(std::move(share));
    for (int rank = 1; rank < ranks.count(); ++rank) {
      const fs::path file = one_machine ? fs::path(files[static_cast<std::size_t>(rank)]) : work.file(share_name(rank));
      if (!one_machine) ranks.receive_file(rank, file);
      shares.push_back(load_part(file));
    }
    whole = merge_shards(std::move(shares), files);
    const Timeline::Phase saving(options.timeline, phase::kSaving);
    save_statistics(*whole, options.output);
  } else if (!one_machine) {
    ranks.send_file(own);
  }
  ranks.broadcast("written");
  return whole;
}

void require_same_everywhere(Ranks& ranks, const Json& identity) {
  Json own = identity;
  own["options"].erase("shard");
  own.erase("threads");
  const std::vector<std::string> all = ranks.all_gather(own.dump());
  const auto other = std::find_if(all.begin(), all.end(), [&](const std::string& text) { return text != all.front(); });
  if (other == all.end()) return;
  const Json first = parse_json(all.front(), "rank 0"), found = parse_json(*other, "another rank");
  std::string what = "options";
  for (const char* key : {"tool_version", "prompts", "model"}) {
    if (json_member(found, key) != json_member(first, key)) what = key;
  }
  throw InputError("rank " + std::to_string(other - all.begin()) + " differs from rank 0 in its " + what +
                   ": all ranks need the same command, model, prompts and version");
}

void remove_run_directory(const CollectOptions& options) {
  options.ranks->barrier();
  std::error_code ec;
  fs::remove(run_directory_of(options), ec);  // on each machine; fails if other files are in it
}

}  // namespace oscar
