// Memory of a GPU or of the machine, asked before a long run.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace oscar {

// Bytes that an allocation could still get on the device; 0 on the CPU.
std::uint64_t free_device_bytes(at::Device device);
std::uint64_t all_device_bytes(at::Device device);  // in use or not
std::uint64_t all_memory_bytes(at::Device device);  // the same of the machine for the CPU; 0: the system does not say

// With -v: the most that tensors held on a GPU so far, and the most that this process took from it for them, which
// counts memory that was free again and kept. Says nothing on the CPU, or where no GPU was used.
void log_device_memory(at::Device device);

// EnvironmentError when `needed` bytes are not free on a GPU: one sentence that ends with `advice`, what would fit.
// Does nothing on the CPU.
void require_device_memory(at::Device device, std::uint64_t needed, const std::string& advice);
// The same, and on the CPU for what the machine could still give; where the system does not say, nothing.
void require_memory(at::Device device, std::uint64_t needed, const std::string& advice);
// Bytes of "MemAvailable" in the text of /proc/meminfo; 0 where it does not say.
std::uint64_t available_bytes(std::string_view meminfo);
// The sentence's rule alone, for free memory that is known.
std::string memory_shortage(const std::string& device, std::uint64_t free, std::uint64_t needed,
                            const std::string& advice);

}  // namespace oscar
