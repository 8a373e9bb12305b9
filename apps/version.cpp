#include <ATen/ATen.h>
#include <torch/csrc/api/include/torch/version.h>

#include "apps/options/shared_options.h"
#include "build_info.h"
#include "git_revision.h"

namespace oscar {

std::string version_text() {
  std::string text = std::string("oscar ") + kToolVersion + " (" + kGitRevision + ")\n";
  text += std::string("compiler: ") + kCompiler + ", " + kBuildType + "\n";
  text += std::string("LibTorch: ") + TORCH_VERSION + ", CPU capability " + at::get_cpu_capability() + "\n";
  text += std::string("CUDA kernels: ") + (kBuiltWithCuda ? kCudaVersion : "not built");
  return text;
}

}  // namespace oscar
