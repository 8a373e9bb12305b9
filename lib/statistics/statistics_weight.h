// Statistics that count less than they are: the parts of a moving window over traffic.
#pragma once

#include <vector>

#include "statistics/statistics.h"

namespace oscar {

// The same means, counted as `weight` (0, 1] times as many tokens, rounded to whole ones and at least one: what a part
// is before it is merged into a moving window. Rows are less likely to stay in a merged sample by as much, and the
// weight is recorded with each run. UsageError for another weight.
Statistics weighted_statistics(const Statistics& statistics, double weight);

// Parts from the oldest to the newest, each weighed `decay` (0, 1] times as much as the one that follows.
std::vector<Statistics> decayed_statistics(std::vector<Statistics> parts, double decay);

}  // namespace oscar
