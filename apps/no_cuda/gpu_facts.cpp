// Where CUDA is off: never asked, because --device refuses a GPU before.
#include "apps/gpu_facts.h"
#include "base/errors.h"

namespace oscar {

GpuFacts gpu_facts(int) { throw EnvironmentError("this build has no CUDA kernels; pass --device cpu"); }

}  // namespace oscar
