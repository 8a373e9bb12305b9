// Without CUDA there are no GPUs. --device refuses them, so no GPU function is called.
#include "base/errors.h"
#include "pipeline/common/device_choice.h"

namespace oscar {

int gpu_count() { return 0; }

void load_gpu_library() {}

GpuFacts gpu_facts(int) { throw EnvironmentError("this build has no CUDA kernels; pass --device cpu"); }

}  // namespace oscar
