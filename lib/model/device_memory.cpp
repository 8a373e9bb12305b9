#include "model/device_memory.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>

#include "base/errors.h"
#include "base/files.h"

namespace oscar {

std::uint64_t free_device_bytes(at::Device device) {
  if (!device.is_cuda()) return 0;
  const c10::DeviceGuard guard(device);
  return c10::getDeviceAllocator(device.type())->getMemoryInfo(device.has_index() ? device.index() : 0).first;
}

std::string memory_obstacle(const std::string& device, std::uint64_t free, std::uint64_t needed,
                            const std::string& advice) {
  if (needed <= free) return "";
  return device + " has " + format_bytes(free) + " of memory free, the run needs about " + format_bytes(needed) + "; " +
         advice;
}

void require_device_memory(at::Device device, std::uint64_t needed, const std::string& advice) {
  if (!device.is_cuda()) return;
  const std::string obstacle = memory_obstacle(device.str(), free_device_bytes(device), needed, advice);
  if (!obstacle.empty()) throw EnvironmentError(obstacle);
}

}  // namespace oscar
