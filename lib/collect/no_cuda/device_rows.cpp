#include "collect/device_rows.h"

#include <ATen/ATen.h>

namespace oscar {

at::Tensor device_rows(const at::Tensor&, std::int64_t) { return {}; }
at::Tensor device_rows_before(const at::Tensor&, std::int64_t, const Unrotation::Rows&) { return {}; }
at::Tensor device_weighted_rows(const at::Tensor&, const at::Tensor&) { return {}; }
at::Tensor device_head_rows(const at::Tensor&, std::int64_t) { return {}; }
at::Tensor device_far_rows(const at::Tensor&, std::int64_t, const at::Tensor&, const Unrotation::Rows&) { return {}; }

}  // namespace oscar
