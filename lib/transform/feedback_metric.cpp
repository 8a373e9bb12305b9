#include "transform/feedback_metric.h"

#include <ATen/ATen.h>

namespace oscar {

std::shared_ptr<const FeedbackMetric> feedback_metric(const SideTransform& side, const RowCode& code,
                                                      std::int64_t head) {
  if (!side.metric.defined()) return nullptr;
  const at::Tensor blocks = side.metric[head].to(at::kCPU, at::kFloat).contiguous();
  return std::make_shared<const FeedbackMetric>(blocks.const_data_ptr<float>(), code);
}

}  // namespace oscar
