// Distributes the sequences of a run over ranks (distributed/ranks.h), in complete groups whose scores are independent.
// Sequences with layer errors stay on rank 0. Their sums are thus added in single-process order, and every number in
// the report has the same bits.
#pragma once

#include <cstdint>
#include <vector>

#include "distributed/ranks.h"
#include "verify/score_store.h"

namespace oscar {

// The rank of each group. probed: sequences with layer errors; they count twice because they cost about twice as much.
// The other groups go, in order, to the rank with the fewest tokens so far (ties: the lowest).
std::vector<int> deal_groups(const ScoreLayout& layout, std::int64_t probed, int ranks);

// Collects and checks the records of all groups in the work directory of rank 0. rows: number per record.
void gather_groups(Ranks& ranks, const VerifyWork& work, const ScoreLayout& layout, const std::vector<int>& owners,
                   std::size_t rows);

}  // namespace oscar
