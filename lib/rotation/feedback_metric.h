// The metric of encoder feedback: the fit makes it, the transform stores it, and the encoder reads it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "codec/feedback.h"
#include "rotation/fit_options.h"
#include "rotation/transform.h"
#include "statistics/statistics.h"

namespace oscar {

// Sets `metric` of one side: the diagonal blocks of the error metric in the cache basis. It starts from the metric in
// model coordinates (side_moments.h, damped as for the transform; values: what W_O reads of errors). A head whose
// errors nothing reads gets the identity.
void set_feedback_metric(const Statistics& statistics, const FitOptions& options, Side side, std::size_t layer,
                         SideTransform& transform);

// The metric of one KV head; null if the transform has none. code: the storage of the side.
std::shared_ptr<const FeedbackMetric> feedback_metric(const SideTransform& side, const RowCode& code,
                                                      std::int64_t head);

}  // namespace oscar
