// Uploads bytes that every rank needs on its GPU, such as the weights of a layer. Each rank reads and copies one part
// over its own bus; then NCCL all-gathers the parts. N ranks thus need about 1/N of the time. Builds without CUDA code
// do not have it (no_cuda/).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <span>

#include "distributed/ranks.h"

namespace oscar {

// Each rank copies smaller pieces itself, because gathering them would take longer.
inline constexpr std::size_t kLeastGatherBytes = std::size_t{1} << 20;

class ByteGather {
 public:
  // All ranks call it with their GPUs. NCCL initializes in the background. EnvironmentError without NCCL.
  static std::unique_ptr<ByteGather> start(Ranks& ranks, at::Device device);
  virtual ~ByteGather() = default;

  // [bytes] uint8 on the GPU, ready for the current stream. All ranks call it in the same order with pieces of equal
  // size. EnvironmentError when NCCL fails.
  virtual at::Tensor upload(std::span<const std::byte> bytes) = 0;
};

// While an object lives, this thread loads weights (weights/tensor_view.h) through `gather`. Null: each rank loads on
// its own.
class GatherScope {
 public:
  explicit GatherScope(ByteGather* gather);
  ~GatherScope();
  GatherScope(const GatherScope&) = delete;
  GatherScope& operator=(const GatherScope&) = delete;

 private:
  ByteGather* before_;
};
ByteGather* current_gather();  // for this thread; null: none

}  // namespace oscar
