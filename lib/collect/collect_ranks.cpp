#include "collect/collect_ranks.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/errors.h"

namespace oscar {
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
