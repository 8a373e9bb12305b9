#include "moments/device_gram.h"

namespace oscar {

bool device_gram(at::Tensor&, const at::Tensor&) { return false; }

}  // namespace oscar
