#include "statistics/collect_ranks.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "statistics/collect_phases.h"
#include "statistics/shard_merge.h"

namespace oscar {
namespace {

// Rank 0 sees the work directories of the others, so that nothing has to be sent.
bool on_one_machine(const Ranks& ranks) { return ranks.environment().local_count == ranks.count(); }

// files: where each rank has its share.
Statistics add_up_shares(const Statistics& own, const std::vector<std::string>& files, const CollectOptions& options,
                         const WorkDirectory& work) {
  std::vector<Statistics> shares = {own};
  for (int r = 1; r < options.ranks->count(); ++r) {
    fs::path file = files[static_cast<std::size_t>(r)];
    if (!on_one_machine(*options.ranks)) {
      file = work.file(share_name(r));
      options.ranks->receive_file(r, file);
    }
    shares.push_back(load_part(file));
  }
  return merge_shards(std::move(shares), files);
}

}  // namespace

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

bool start_together(Ranks& ranks, std::int64_t layer) {
  const std::vector<std::string> all = ranks.all_gather(std::to_string(layer));
  return layer >= 0 && std::all_of(all.begin(), all.end(), [&](const std::string& l) { return l == all.front(); });
}

std::optional<Statistics> deliver_share(const Statistics& share, const CollectOptions& options,
                                        const WorkDirectory& work) {
  const Timeline::Phase delivering(options.timeline, phase::kRanks);
  Ranks& ranks = *options.ranks;
  const fs::path file = work.file(share_name(0));
  if (!ranks.is_first()) save_statistics(share, file, /*durable=*/false);
  const std::vector<std::string> files = ranks.all_gather(fs::absolute(file).string());
  std::optional<Statistics> whole;
  if (ranks.is_first()) {
    whole = add_up_shares(share, files, options, work);
    save_statistics(*whole, options.output);
  } else if (!on_one_machine(ranks)) {
    ranks.send_file(file);
  }
  ranks.broadcast("written");
  return whole;
}

void remove_run_directory(const CollectOptions& options) {
  options.ranks->barrier();
  std::error_code ec;
  fs::remove(run_directory_of(options), ec);  // on each machine; fails where other files are in it
}

}  // namespace oscar
