// How the sequences of a run are spread over ranks (distributed/ranks.h): whole groups, whose scores do not depend on
// one another. Sequences that layer errors are measured on stay with rank 0, so that their sums are added up in the
// order of one process and every figure of the report has the same bits.
#pragma once

#include <cstdint>
#include <vector>

#include "distributed/ranks.h"
#include "verify/score_store.h"

namespace oscar {

// The rank of each group. probed: sequences that layer errors are measured on; they count twice, as they cost about as
// much again. The other groups go, in their order, to the rank with the least tokens so far (ties: the lowest).
// spectra: the last rank measures them behind its groups, and gets fewer.
std::vector<int> deal_groups(const ScoreLayout& layout, std::int64_t probed, int ranks, bool spectra);

// Brings the records of all groups into the work directory of rank 0, checked. rows: of a record.
void gather_groups(Ranks& ranks, const VerifyWork& work, const ScoreLayout& layout, const std::vector<int>& owners,
                   std::size_t rows);

}  // namespace oscar
