#include "collect/shard.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "base/errors.h"
#include "statistics/statistics_format.h"

namespace oscar {
namespace {

bool read_number(std::string_view text, std::int64_t& value) {
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  return !text.empty() && text[0] != '-' && end.ec == std::errc() && end.ptr == text.data() + text.size();
}

std::uint64_t step_cost(const TokenPlan& plan, const Step& step) {
  std::uint64_t cost = 0;
  for (std::size_t i = step.first; i < step.first + step.count; ++i) cost += sequence_cost(plan.pieces[i].length);
  return cost;
}

}  // namespace

std::uint64_t sequence_cost(std::int64_t tokens) {
  const auto n = static_cast<std::uint64_t>(tokens);
  return n * (static_cast<std::uint64_t>(kShardTokenCost) + n);
}

Shard parse_shard(const std::string& text) {
  Shard shard;
  const std::string_view view = text;
  const std::size_t slash = view.find('/');
  if (slash == std::string_view::npos || !read_number(view.substr(0, slash), shard.index) ||
      !read_number(view.substr(slash + 1), shard.count) || shard.index < 1 || shard.index > shard.count ||
      shard.count > kMaxShards) {
    throw UsageError("--shard is '" + text + "', expected i/N with i from 1 to N, such as 2/8, and N at most " +
                     std::to_string(kMaxShards));
  }
  return shard;
}

std::string shard_text(const Shard& shard) { return std::to_string(shard.index) + "/" + std::to_string(shard.count); }

Json shard_record(const TokenPlan& plan) {
  return {{"index", plan.shard.index},
          {"of", plan.shard.count},
          {"tokens", plan.whole_tokens},
          {"sequences", plan.whole_sequences}};
}

std::vector<std::vector<std::size_t>> deal_steps(const TokenPlan& plan, std::int64_t count) {
  std::vector<std::uint64_t> cost;
  for (const Step& step : plan.steps) cost.push_back(step_cost(plan, step));
  std::vector<std::size_t> order(cost.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return cost[a] > cost[b]; });

  std::vector<std::vector<std::size_t>> shares(static_cast<std::size_t>(count));
  std::vector<std::uint64_t> load(shares.size(), 0);
  for (const std::size_t step : order) {
    const auto least = static_cast<std::size_t>(std::min_element(load.begin(), load.end()) - load.begin());
    load[least] += cost[step];
    shares[least].push_back(step);
  }
  for (std::vector<std::size_t>& share : shares) std::sort(share.begin(), share.end());
  return shares;
}

TokenPlan shard_plan(const TokenPlan& whole, const Shard& shard) {
  if (!shard.is_part()) return whole;
  TokenPlan plan = whole;
  plan.shard = shard;
  plan.pieces.clear();
  plan.steps.clear();
  plan.tokens = plan.longest = 0;
  const std::vector<std::vector<std::size_t>> shares = deal_steps(whole, shard.count);
  for (const std::size_t index : shares[static_cast<std::size_t>(shard.index - 1)]) {
    const Step& from = whole.steps[index];
    plan.steps.push_back({plan.pieces.size(), from.count, plan.tokens, from.tokens});
    for (std::size_t i = from.first; i < from.first + from.count; ++i) {
      Piece piece = whole.pieces[i];
      piece.position = plan.tokens;
      plan.tokens += piece.length;
      plan.longest = std::max(plan.longest, piece.length);
      plan.pieces.push_back(piece);
    }
  }
  return plan;
}

}  // namespace oscar
