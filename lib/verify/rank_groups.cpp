#include "verify/score_store.h"

#include <algorithm>

namespace oscar {
namespace {

// Layer errors cost about as much as the passes of a sequence. The first sequence is run twice and its pages are
// checked. For a short sequence this costs twice as much again; for longer ones the checked amount does not grow.
constexpr std::int64_t kCheckCost = 2, kCheckedTokens = 4096;

}  // namespace

std::vector<int> deal_groups(const ScoreLayout& layout, std::int64_t probed, int ranks) {
  std::vector<int> owners;
  std::vector<std::int64_t> load(static_cast<std::size_t>(ranks), 0);
  const std::size_t groups = (layout.tokens.size() + layout.group - 1) / layout.group;
  const std::int64_t first = std::max<std::int64_t>(probed, 1);  // the null run uses the first sequence
  for (std::size_t g = 0; g < groups; ++g) {
    std::int64_t cost = 0;
    for (const std::int64_t tokens : layout.of_group(g)) cost += layout.first_position + tokens;
    const bool stays = static_cast<std::int64_t>(g * layout.group) < first;
    const auto least = std::min_element(load.begin(), load.end()) - load.begin();
    owners.push_back(stays ? 0 : static_cast<int>(least));
    load[static_cast<std::size_t>(owners.back())] +=
        !stays ? cost : 2 * cost + (g == 0 ? kCheckCost * std::min(cost, kCheckedTokens) : 0);
  }
  return owners;
}

void gather_groups(Ranks& ranks, const VerifyWork& work, const ScoreLayout& layout, const std::vector<int>& owners,
                   std::size_t rows) {
  for (std::size_t g = 0; g < owners.size(); ++g) {
    const fs::path file = work.file(group_name(g));
    if (owners[g] == ranks.rank() && !ranks.is_first()) ranks.send_file(file);
    if (owners[g] == 0 || !ranks.is_first()) continue;
    ranks.receive_file(owners[g], file);
    const std::optional<WorkRecord> record = work.load(group_name(g));
    for (std::size_t r = 0; r < rows; ++r) {
      read_scores(record.value(), file.string(), r, layout.first_position, layout.of_group(g));
    }
  }
}

}  // namespace oscar
