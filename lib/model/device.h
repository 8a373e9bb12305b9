// What a run asks of a device: memory, waiting, factorizations.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/timeline.h"

namespace oscar {

// Queries memory of a GPU or the machine before a long run.

// Bytes that can still be allocated on the device; 0 on the CPU.
std::uint64_t free_device_bytes(at::Device device);
std::uint64_t all_device_bytes(at::Device device);  // total, used or free
std::uint64_t all_memory_bytes(at::Device device);  // total; for the CPU, the machine's memory; 0 if the system does
                                                    // not report it

// With -v, logs two peaks on a GPU: bytes in tensors, and bytes that this process reserved for them. The latter
// includes freed memory that is kept for reuse. Logs nothing on the CPU or if no GPU was used.
void log_device_memory(at::Device device);

// EnvironmentError if fewer than `needed` bytes are free on a GPU. The message ends with `advice`, which says what
// would fit. Does nothing on the CPU.
void require_device_memory(at::Device device, std::uint64_t needed, const std::string& advice);
// The same, and on the CPU checks the available memory of the machine. Does nothing if the system does not report it.
void require_memory(at::Device device, std::uint64_t needed, const std::string& advice);
// Bytes of "MemAvailable" in the text of /proc/meminfo; 0 if it is absent.
std::uint64_t available_bytes(std::string_view meminfo);
// The message for a known amount of free memory; empty if the memory suffices.
std::string memory_shortage(const std::string& device, std::uint64_t free, std::uint64_t needed,
                            const std::string& advice);

// GPU kernels run asynchronously. At the end of a timeline phase, the CPU must wait for the kernels that the phase
// started.

// Makes each later switch of phases wait for the device's current stream. Does nothing on the CPU or for a null
// timeline.
void settle_on_device(Timeline* timeline, at::Device device);

// Waits until x is computed.
void wait_for(const at::Tensor& x);

// LibTorch loads its GPU factorizations (Cholesky, triangular solves, eigenproblems) on first use. It fails if a second
// thread calls one before loading completes ("lazy wrapper should be called at most once").

// Loads them, or waits for the thread that does. Call it before each factorization of tensors that may be on a GPU.
// Does nothing on the CPU.
void begin_linear_algebra(c10::Device device);

}  // namespace oscar
