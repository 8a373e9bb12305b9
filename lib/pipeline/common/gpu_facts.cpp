#include "pipeline/common/device_choice.h"

#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace oscar {

namespace {

// "13.0.88" as 13000; 0 if it is no version.
int cuda_number(const std::string& version) {
  int major = 0, minor = 0;
  return std::sscanf(version.c_str(), "%d.%d", &major, &minor) == 2 ? 1000 * major + 10 * minor : 0;
}

}  // namespace

std::string gpu_unsupported(const GpuFacts& gpu, const std::string& architectures, const std::string& compiler) {
  std::string names;
  bool ptx = false;
  std::istringstream list(architectures);
  for (std::string item; std::getline(list, item, ';');) {
    const std::size_t dash = item.find('-');
    const std::string number = item.substr(0, dash), kind = dash == std::string::npos ? "" : item.substr(dash + 1);
    if (number.empty()) continue;
    const int value = std::atoi(number.c_str()), major = value / 10, minor = value % 10;
    const bool exact = number.back() >= 'a' && number.back() <= 'z';
    const bool native = kind != "virtual" && gpu.major == major && (exact ? gpu.minor == minor : gpu.minor >= minor);
    const bool translated =
        kind != "real" && !exact && (gpu.major > major || (gpu.major == major && gpu.minor >= minor));
    if (native) return "";
    ptx = ptx || translated;
    names += (names.empty() ? "" : ", ") + std::to_string(major) + "." + std::to_string(minor);
  }
  if (ptx) {
    if (gpu.driver >= cuda_number(compiler)) return "";
    return "the driver of " + gpu.name + " is for CUDA " + std::to_string(gpu.driver / 1000) + "." +
           std::to_string(gpu.driver % 1000 / 10) + " and cannot translate the kernels of this build, which CUDA " +
           compiler + " compiled; update the driver, or pass --device cpu";
  }
  return gpu.name + " has compute capability " + std::to_string(gpu.major) + "." + std::to_string(gpu.minor) +
         ", and the kernels of this build are for " + (names.empty() ? "none" : names) +
         "; configure with -DOSCAR_CUDA_ARCHITECTURES=" + std::to_string(gpu.major * 10 + gpu.minor) +
         " (8.0 is the least), or pass --device cpu";
}

}  // namespace oscar
