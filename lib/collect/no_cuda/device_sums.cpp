#include "collect/device_sums.h"

#include <ATen/ATen.h>

namespace oscar {

at::Tensor device_rows(const at::Tensor&, std::int64_t) { return {}; }
at::Tensor device_rows_before(const at::Tensor&, std::int64_t, const Unrotation::Rows&) { return {}; }
at::Tensor device_weighted_rows(const at::Tensor&, const at::Tensor&) { return {}; }
at::Tensor device_head_rows(const at::Tensor&, std::int64_t) { return {}; }
at::Tensor device_far_rows(const at::Tensor&, std::int64_t, const at::Tensor&, const Unrotation::Rows&) { return {}; }

bool device_gram(at::Tensor&, const at::Tensor&) { return false; }
bool device_gram_about_mean(at::Tensor&, at::Tensor&, const at::Tensor&) { return false; }
bool device_ordered_gram(at::Tensor&, const at::Tensor&, std::int64_t) { return false; }
at::Tensor device_long_grams(const std::vector<at::Tensor>&) { return {}; }

bool device_far_pairs_built(const AttentionInput&) { return false; }
SplitValues split_values(const at::Tensor&, const at::Tensor&) { return {}; }
FarSums device_far_pairs(const AttentionInput&, const at::Tensor&, const at::Tensor&, const SplitValues&,
                         const at::Tensor&, const at::Tensor&, std::int64_t, const FarPairs&) {
  return {};
}

}  // namespace oscar
