// Bytes that every rank needs on its GPU, such as the weights of a layer: each rank reads and copies one part of them
// over its own bus, and NCCL hands the parts round, so that N ranks take the time of 1/N. Without CUDA code there is
// none of it (no_cuda/).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <span>

#include "distributed/ranks.h"

namespace oscar {

// Smaller pieces are copied by each rank: handing them round would take longer.
inline constexpr std::size_t kLeastGatherBytes = std::size_t{1} << 20;

class ByteGather {
 public:
  // Called by all ranks with their GPUs; the meeting of NCCL goes on in the background. EnvironmentError without NCCL.
  static std::unique_ptr<ByteGather> start(Ranks& ranks, at::Device device);
  virtual ~ByteGather() = default;

  // [bytes] uint8 on the GPU, ready for the current stream. Called by all ranks in the same order with pieces of the
  // same size. EnvironmentError when NCCL fails.
  virtual at::Tensor upload(std::span<const std::byte> bytes) = 0;
};

// While one lives, what this thread loads (weights/tensor_view.h) goes through `gather`; null: each rank loads alone.
class GatherScope {
 public:
  explicit GatherScope(ByteGather* gather);
  ~GatherScope();
  GatherScope(const GatherScope&) = delete;
  GatherScope& operator=(const GatherScope&) = delete;

 private:
  ByteGather* before_;
};
ByteGather* current_gather();  // of this thread; null: none

}  // namespace oscar
