#include "model/device.h"

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <unistd.h>

#include <charconv>
#include <fstream>
#include <iterator>
#include <mutex>
#include <utility>

#include "base/errors.h"
#include "base/files.h"
#include "base/log.h"

namespace oscar {
namespace {

std::pair<std::uint64_t, std::uint64_t> free_and_all(at::Device device) {
  if (!device.is_cuda()) return {0, 0};
  const c10::DeviceGuard guard(device);
  return c10::getDeviceAllocator(device.type())->getMemoryInfo(device.has_index() ? device.index() : 0);
}

}  // namespace

std::uint64_t free_device_bytes(at::Device device) { return free_and_all(device).first; }
std::uint64_t all_device_bytes(at::Device device) { return free_and_all(device).second; }

std::uint64_t all_memory_bytes(at::Device device) {
  if (!device.is_cpu()) return all_device_bytes(device);
  const long pages = ::sysconf(_SC_PHYS_PAGES), size = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && size > 0 ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(size) : 0;
}

void log_device_memory(at::Device device) {
  if (!device.is_cuda()) return;
  c10::DeviceAllocator* allocator = c10::getDeviceAllocator(device.type());
  if (!allocator->initialized()) return;
  const auto stats = allocator->getDeviceStats(device.has_index() ? device.index() : c10::DeviceIndex{0});
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto peak = [](const auto& counted) { return format_bytes(static_cast<std::uint64_t>(counted[kAll].peak)); };
  log_detail("GPU memory: " + peak(stats.allocated_bytes) + " in tensors and " + peak(stats.reserved_bytes) +
             " taken, at their peaks");
}

std::string memory_shortage(const std::string& device, std::uint64_t free, std::uint64_t needed,
                            const std::string& advice) {
  if (needed <= free) return "";
  return device + " has " + format_bytes(free) + " of memory free, the run needs about " + format_bytes(needed) + "; " +
         advice;
}

void require_device_memory(at::Device device, std::uint64_t needed, const std::string& advice) {
  if (!device.is_cuda()) return;
  const std::string shortage = memory_shortage(device.str(), free_device_bytes(device), needed, advice);
  if (!shortage.empty()) throw EnvironmentError(shortage);
}

std::uint64_t available_bytes(std::string_view meminfo) {
  constexpr std::string_view kName = "MemAvailable:";
  const std::size_t line = meminfo.find(kName);
  if (line == std::string_view::npos) return 0;
  const std::size_t digit = meminfo.find_first_not_of(' ', line + kName.size());
  std::uint64_t kibibytes = 0;
  if (digit != std::string_view::npos) {
    std::from_chars(meminfo.data() + digit, meminfo.data() + meminfo.size(), kibibytes);
  }
  return kibibytes * 1024;
}

void require_memory(at::Device device, std::uint64_t needed, const std::string& advice) {
  require_device_memory(device, needed, advice);
  if (!device.is_cpu()) return;
  std::ifstream file("/proc/meminfo");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::uint64_t available = available_bytes(text);
  if (available == 0) return;
  const std::string shortage = memory_shortage("this machine", available, needed, advice);
  if (!shortage.empty()) throw EnvironmentError(shortage);
}

void settle_on_device(Timeline* timeline, at::Device device) {
  if (timeline == nullptr || !device.is_cuda()) return;
  timeline->set_settle([device] {
    const c10::impl::VirtualGuardImpl guard(device.type());
    guard.synchronizeStream(guard.getStream(device));
  });
}

void wait_for(const at::Tensor& x) { x.flatten().narrow(0, 0, 1).item(); }

void begin_linear_algebra(c10::Device device) {
  if (!device.is_cuda()) return;
  static std::once_flag begun;
  std::call_once(begun, [device] { at::linalg_cholesky_ex(at::ones({1, 1}, at::TensorOptions(device))); });
}

}  // namespace oscar
