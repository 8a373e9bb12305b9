#include "fit/eigen_batched.h"
#include "base/errors.h"

namespace oscar {

BatchedEigen batched_eigen(const at::Tensor&) {
  throw EnvironmentError(
      "this build has no GPU eigensolver; configure it with `cmake --preset cuda`, or pass --device cpu");
}

}  // namespace oscar
