// Sides of a method with codebooks that have OSCAR's code with one bit (codec/two_levels.h).
#pragma once

#include <cstddef>

#include "rotation/fit_options.h"
#include "rotation/transform.h"
#include "statistics/statistics.h"

namespace oscar {

// Makes the side one of two levels. Where clips are searched, those of two bits are replaced: with two levels the ends
// of the range are all there is, and those of least squared error lie at the mean magnitude. Each ratio
// (clip_candidates) is that of least squared error over max_rows sampled rows, which an orthogonal transform leaves as
// it is. Needs rows.
void set_two_levels(const Statistics& statistics, const FitOptions& options, std::size_t layer, Side side,
                    SideTransform& transform);

}  // namespace oscar
