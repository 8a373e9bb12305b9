// A share of one run's token plan (oscar-collect --shard i/N), so that N processes that know nothing of each other
// collect it, and merge_shards() (shard_merge.h) adds up what one run would have found.
//
// Whole steps are dealt out: the tokens of a step meet in the same GEMMs as in one run, so every activation has the
// same bits and only the order of FP64 sums differs. A step's cost is the sum over its sequences of n (a + n), with n
// the tokens of a sequence: a stands for the linear layers, n for attention. Steps are dealt from the most expensive
// on (ties: the earlier one first), each to the shard with the least cost so far (ties: the lowest number): Graham's
// LPT rule (1969), whose largest share is at most 4/3 of the best one. The same plan and N give the same shares.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "statistics/token_plan.h"

namespace oscar {

// a: tokens of attention that cost as much as one token's linear layers. 12 hidden / 4 at hidden 4096, rounded: per
// token a layer multiplies about 12 hidden^2 weights, and attention with far pairs about 4 hidden n / 2 numbers.
inline constexpr std::int64_t kShardTokenCost = 16384;

std::uint64_t sequence_cost(std::int64_t tokens);

// "2/3". UsageError unless 1 <= i <= N <= 100000, in digits alone.
Shard parse_shard(const std::string& text);
std::string shard_text(const Shard& shard);  // "2/3"

// What files and results say of a share: {index, of, and tokens and sequences of the whole run}.
Json shard_record(const TokenPlan& plan);

// The steps of each of `count` shards, indices into plan.steps, ascending; some may be empty.
std::vector<std::vector<std::size_t>> deal_steps(const TokenPlan& plan, std::int64_t count);

// The share of a whole plan: its pieces and steps in their order, positions counted anew, sequences under the numbers
// that they have in the whole. What the plan says about prompts stays that of the whole. Empty (no pieces, no steps, 0
// tokens) where there are more shards than steps.
TokenPlan shard_plan(const TokenPlan& whole, const Shard& shard);

}  // namespace oscar
