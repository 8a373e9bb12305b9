// The metric of encoder feedback: made here, stored by the transform (transform/feedback_metric.h), and read by the
// encoder.
#pragma once

#include <cstddef>

#include "fit/fit_options.h"
#include "statistics/statistics.h"
#include "transform/transform.h"

namespace oscar {

// Sets `metric` of one side: the diagonal blocks of the error metric in the cache basis. It starts from the metric in
// model coordinates (side_moments.h, damped as for the transform; values: what W_O reads of errors). A head whose
// errors nothing reads gets the identity.
void set_feedback_metric(const Statistics& statistics, const FitOptions& options, Side side, std::size_t layer,
                         SideTransform& transform);

}  // namespace oscar
