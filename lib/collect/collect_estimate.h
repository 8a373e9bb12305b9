// Memory and disk space that a run needs, computed from the geometry.
#pragma once

#include <cstdint>
#include <string>

#include "collect/collect.h"

namespace oscar {

struct CollectEstimate {
  std::uint64_t weight_bytes = 0;  // resident weights: the largest layer
  std::uint64_t stored_bytes = 0;  // bytes of all weights in the checkpoint's files, quantized or not
  std::uint64_t peak_bytes = 0;    // memory of the process: libraries, weights, one step, moments
  std::uint64_t device_bytes = 0;  // part of peak_bytes on the GPU; 0 on the CPU
  std::uint64_t disk_bytes = 0;    // work directory and output together
  std::uint64_t output_bytes = 0;
  bool from_index = false;  // the shards are absent
};

// Estimates only bytes: cheap, loads no weights. InputError if the index of absent shards lacks a tensor.
CollectEstimate estimate_bytes(const Checkpoint& checkpoint, const TokenPlan& plan, const CollectOptions& options);

// EnvironmentError if the GPU has less free memory than the run needs; the message names the option that would make it
// fit.
void require_gpu_memory(const Checkpoint& checkpoint, const TokenPlan& plan, const CollectOptions& options,
                        const CollectEstimate& estimate);
// Advice for when only `free` bytes are available: the longest --seq-len that fits.
std::string gpu_memory_advice(const Checkpoint& checkpoint, const TokenPlan& plan, const CollectOptions& options,
                              std::uint64_t free);

// EnvironmentError if the file system of the work directory or of the output has less space than the run needs.
void require_disk_space(const CollectOptions& options, const CollectEstimate& estimate);

}  // namespace oscar
