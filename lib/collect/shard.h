// A share of one run's token plan (oscar-collect --shard i/N). N independent processes collect the shares, and
// merge_shards() (shard_merge.h) adds them up to the result of one run.
//
// Shares consist of complete steps: the tokens of a step meet in the same GEMMs as in one run, so every activation has
// the same bits. Only the order of FP64 sums differs. A step's cost is the sum over its sequences of n (a + n), with n
// the tokens of a sequence: a stands for the linear layers, n for attention. Steps are dealt from the most expensive on
// (ties: the earlier one first), each to the shard with the least cost so far (ties: the lowest number). This is
// Graham's LPT rule (1969), whose largest share is at most 4/3 of the best one. The same plan and N give the same
// shares.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "collect/token_plan.h"

namespace oscar {

// a: tokens of attention that cost as much as the linear layers of one token. 12 hidden / 4 at hidden 4096, rounded.
// Per token, a layer multiplies about 12 hidden^2 weights. Attention with the pair metrics multiplies about 4 hidden n
// / 2 numbers.
inline constexpr std::int64_t kShardTokenCost = 16384;

std::uint64_t sequence_cost(std::int64_t tokens);

// "2/3". UsageError unless 1 <= i <= N <= 100000, written only in digits.
Shard parse_shard(const std::string& text);
std::string shard_text(const Shard& shard);  // "2/3"

// The record of a share in files and results: {index, of, and tokens and sequences of the full run}.
Json shard_record(const TokenPlan& plan);

// The steps of each of `count` shards, indices into plan.steps, ascending; some may be empty.
std::vector<std::vector<std::size_t>> deal_steps(const TokenPlan& plan, std::int64_t count);

// One share of a full plan: its pieces and steps in their order, with positions counted from 0 and sequences under
// their numbers in the full plan. Statements of the plan about prompts still concern the full plan. Empty (no pieces,
// no steps, 0 tokens) if there are more shards than steps.
TokenPlan shard_plan(const TokenPlan& whole, const Shard& shard);

}  // namespace oscar
