#include "statistics/device_gram.h"

namespace oscar {

bool device_gram(at::Tensor&, const at::Tensor&) { return false; }
bool device_gram_about_mean(at::Tensor&, at::Tensor&, const at::Tensor&) { return false; }

}  // namespace oscar
