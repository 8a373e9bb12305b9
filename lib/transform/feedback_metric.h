// The metric of encoder feedback, as a transform stores it.
#pragma once

#include <cstdint>
#include <memory>

#include "codec/feedback.h"
#include "transform/transform.h"

namespace oscar {

// The metric of one KV head; null if the transform has none. code: the storage of the side.
std::shared_ptr<const FeedbackMetric> feedback_metric(const SideTransform& side, const RowCode& code,
                                                      std::int64_t head);

}  // namespace oscar
