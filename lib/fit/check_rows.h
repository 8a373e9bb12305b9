// Rows of the statistics that a bundle carries for the self-check of engines (CheckRows in bundle/bundle.h).
#pragma once

#include "bundle/bundle.h"
#include "statistics/statistics.h"

namespace oscar {

inline constexpr std::int64_t kMostCheckRows = 192;          // three pages of 64 tokens
inline constexpr std::int64_t kCheckQueries = 8;             // of the newest rows
inline constexpr std::int64_t kMostCheckBytes = 32'000'000;  // of all layers

// The first tokens of the row sample, in the order of their positions: as many as fit into the bytes. Like the sample,
// they depend only on the seed and the prompts. Empty if the statistics hold no rows.
CheckRows check_rows_of(const Statistics& statistics);

}  // namespace oscar
