// What a run would need, for --dry-run: computed from the geometry, except the time, which is measured.
#pragma once

#include <cstdint>
#include <string>

#include "statistics/collect.h"

namespace oscar {

struct CollectEstimate {
  std::uint64_t weight_bytes = 0;  // resident weights: the largest layer
  std::uint64_t stored_bytes = 0;  // of all weights in the checkpoint's files, quantized or not
  std::uint64_t peak_bytes = 0;    // memory of the process: libraries, weights, one step, moments
  std::uint64_t device_bytes = 0;  // of these on the GPU; 0 on the CPU
  std::uint64_t disk_bytes = 0;    // work directory and output together
  std::uint64_t output_bytes = 0;
  bool from_index = false;  // the shards are absent: no layer can be timed, and seconds stays 0
  double seconds = 0;
  std::int64_t sample_tokens = 0;  // the time was measured on a piece of this many tokens
  std::int64_t sample_layer = 0;   // in this layer, the largest
  double load_seconds = 0;         // that it took to load
};

// Bytes alone: cheap, loads no weights. InputError where the index of absent shards lacks a tensor.
CollectEstimate estimate_bytes(const Checkpoint& checkpoint, const TokenPlan& plan, const CollectOptions& options);

// Adds the time, unless from_index: loads the largest layer and runs one short piece through it, moments included.
// Writes nothing.
void measure_time(const Checkpoint& checkpoint, const PromptSet& prompts, const TokenPlan& plan,
                  const CollectOptions& options, CollectEstimate& estimate);

// What a rank's share of the run takes a GPU at least, told by the geometry: the same on all ranks. plan: of the run.
double computing_seconds(const Checkpoint& checkpoint, const TokenPlan& plan, const CollectOptions& options);

// EnvironmentError when the GPU has less memory free than the run needs; says which option would make it fit.
void require_gpu_memory(const Checkpoint& checkpoint, const TokenPlan& plan, const CollectOptions& options,
                        const CollectEstimate& estimate);
// What to do when only `free` bytes are there: the longest --seq-len that fits.
std::string gpu_memory_advice(const Checkpoint& checkpoint, const TokenPlan& plan, const CollectOptions& options,
                              std::uint64_t free);

// EnvironmentError when the work directory's or the output's file system has less room than the run needs.
void require_disk_space(const CollectOptions& options, const CollectEstimate& estimate);

}  // namespace oscar
