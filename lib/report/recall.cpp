#include "report/metrics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

namespace oscar {
namespace {

constexpr std::int64_t kPrefix = kPhraseTokens - 1;

}  // namespace

std::vector<std::int64_t> repeated_tokens(std::span<const std::int32_t> ids, std::int64_t sink, std::int64_t recent) {
  std::map<std::array<std::int32_t, kPrefix>, std::int64_t> next;  // position after the latest occurrence
  std::vector<std::int64_t> positions;
  for (std::int64_t t = kPrefix; t < std::ssize(ids); ++t) {
    std::array<std::int32_t, kPrefix> prefix;
    std::copy_n(ids.begin() + t - kPrefix, kPrefix, prefix.begin());
    const auto [found, is_new] = next.try_emplace(prefix, t);
    if (is_new) continue;
    const std::int64_t before = std::exchange(found->second, t);
    const bool same = ids[static_cast<std::size_t>(before)] == ids[static_cast<std::size_t>(t)];
    if (same && before - kPrefix >= sink && t - before > recent) positions.push_back(t);
  }
  return positions;
}

std::optional<RecallMetrics> recall(const std::vector<SequenceScores>& scores,
                                    const std::vector<std::vector<std::int64_t>>& positions) {
  const double half = std::log(2.0);  // nats of a probability of one half
  RecallMetrics r;
  std::int64_t exact = 0, coded = 0;
  for (std::size_t s = 0; s < std::min(scores.size(), positions.size()); ++s) {
    for (const std::int64_t position : positions[s]) {
      const std::int64_t entry = position - 1 - scores[s].first_position;  // the logits that predict it
      if (entry < 0 || entry >= std::ssize(scores[s].nll)) continue;
      const auto at = static_cast<std::size_t>(entry);
      exact += scores[s].baseline_nll[at] < half ? 1 : 0;
      coded += scores[s].nll[at] < half ? 1 : 0;
      ++r.tokens;
    }
  }
  if (r.tokens == 0) return std::nullopt;
  r.baseline = static_cast<double>(exact) / static_cast<double>(r.tokens);
  r.share = static_cast<double>(coded) / static_cast<double>(r.tokens);
  r.baseline_error = proportion_error(r.baseline, r.tokens);
  r.error = proportion_error(r.share, r.tokens);
  return r;
}

}  // namespace oscar
