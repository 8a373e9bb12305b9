#include "collect/late_number.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace oscar {

LateNumber::LateNumber(const at::Tensor& number) : copy_(number) {
  if (!number.is_cuda()) return;
  copy_ = at::empty(number.sizes(), at::TensorOptions(at::kDouble).pinned_memory(true));
  copy_.copy_(number, /*non_blocking=*/true);
  copied_.emplace(number.device().type());
  copied_->record(c10::impl::VirtualGuardImpl(number.device().type()).getStream(number.device()));
}

double LateNumber::value() const {
  if (copied_) copied_->synchronize();
  return copy_.item<double>();
}

}  // namespace oscar
