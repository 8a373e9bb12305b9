// The metric that encoder feedback works in: made by the fit, carried by the transform, read by whoever encodes.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "codec/feedback.h"
#include "rotation/fit_options.h"
#include "rotation/transform.h"
#include "statistics/statistics.h"

namespace oscar {

// Sets `metric` of one side: the metric of errors in model coordinates (side_moments.h, damped as for the transform;
// values: what W_O reads of them), taken to the basis of the cache, its diagonal blocks. A head whose errors nothing
// reads gets the identity.
void set_feedback_metric(const Statistics& statistics, const FitOptions& options, Side side, std::size_t layer,
                         SideTransform& transform);

// Of one KV head; null where the transform carries none. code: how the side is stored.
std::shared_ptr<const FeedbackMetric> feedback_metric(const SideTransform& side, const RowCode& code,
                                                      std::int64_t head);

}  // namespace oscar
