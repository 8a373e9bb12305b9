// The backends of PagedAttention. The first has the cache in main memory and the CPU's decode attention. The second has
// it in GPU memory, written and read by the fast kernels. If CUDA is off, CMake replaces it by
// no_cuda/cuda_backend.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "attention/cached_attention.h"
#include "checkpoint/model_config.h"

namespace oscar {

class PagedBackend {
 public:
  virtual ~PagedBackend() = default;
  virtual void expect(std::int64_t /*sequences*/, std::int64_t /*tokens*/) {}  // may be ignored
  // Appends the new tokens of every sequence one by one; each attends to the cache as it is then. The starts of the
  // batch must equal the cache's lengths.
  virtual at::Tensor attend(const AttentionInput& input) = 0;
  virtual void append(const AttentionInput& input) = 0;  // the same without attention; reads only k and v
  virtual void release(std::int64_t sequence) = 0;
  virtual std::int64_t tokens(std::int64_t layer, std::int64_t sequence) const = 0;
  virtual StoredPages stored(std::int64_t layer, std::int64_t sequence, Side side) const = 0;
  virtual std::int64_t pages_in_use() const = 0;
  virtual std::uint64_t allocated_bytes() const = 0;
};

std::unique_ptr<PagedBackend> make_cpu_backend(const KvMethod& method, const ModelConfig& model);
// The fast kernels if they support the cache, else the CPU. EnvironmentError if this build has no CUDA.
std::unique_ptr<PagedBackend> make_cuda_backend(const KvMethod& method, const ModelConfig& model, at::Device device);
// Why the fast kernels do not support this method's cache: a clause without a full stop; empty if they do.
std::string fast_kernel_fault(const KvMethod& method, const ModelConfig& model);

}  // namespace oscar
