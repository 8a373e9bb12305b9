// Statistics with a reduced weight: the parts of a moving window over traffic.
#pragma once

#include <vector>

#include "statistics/statistics.h"

namespace oscar {

// The same means, counted as `weight` (0, 1] times as many tokens, rounded to an integer of at least one. Use it for a
// part before it is merged into a moving window. Its rows are less likely by this factor to stay in a merged sample.
// Each run records the weight. UsageError for another weight.
Statistics weighted_statistics(const Statistics& statistics, double weight);

// Parts from the oldest to the newest; each weighs `decay` (0, 1] times as much as the next one.
std::vector<Statistics> decayed_statistics(std::vector<Statistics> parts, double decay);

}  // namespace oscar
