// Where CUDA is off: there are no GPUs, and nothing of one is asked, because --device refuses it before.
#include "apps/gpu_facts.h"
#include "base/errors.h"

namespace oscar {

int gpu_count() { return 0; }

void load_gpu_library() {}

GpuFacts gpu_facts(int) { throw EnvironmentError("this build has no CUDA kernels; pass --device cpu"); }

}  // namespace oscar
