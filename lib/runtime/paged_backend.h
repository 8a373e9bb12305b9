// What PagedAttention runs on: the cache in main memory with the CPU's decode attention, or the cache in the memory of
// a GPU with the CUDA kernels. One file each; CMake replaces the CUDA one by paged_backend_absent.cpp where CUDA is
// off.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "checkpoint/model_config.h"
#include "runtime/cached_attention.h"

namespace oscar {

class PagedBackend {
 public:
  virtual ~PagedBackend() = default;
  // New tokens of every sequence are appended one after another, each attends to the cache as it is then. The starts of
  // the batch are those of the cache.
  virtual at::Tensor attend(const AttentionInput& input) = 0;
  virtual void append(const AttentionInput& input) = 0;  // the same without attention; reads k and v alone
  virtual void release(std::int64_t sequence) = 0;
  virtual std::int64_t tokens(std::int64_t layer, std::int64_t sequence) const = 0;
  virtual StoredPages stored(std::int64_t layer, std::int64_t sequence) const = 0;
  virtual std::uint64_t allocated_bytes() const = 0;
  virtual const PagedCache* cpu_cache() const { return nullptr; }
  virtual const DescribedCache* described_cache() const { return nullptr; }
};

std::unique_ptr<PagedBackend> make_cpu_backend(const KvMethod& method, const ModelConfig& model);
// Of another paper's method, on the CPU.
std::unique_ptr<PagedBackend> make_described_backend(const KvMethod& method, const ModelConfig& model);
// The same with attention on a GPU, by the general kernel or by the one for keys per channel, where that holds them.
std::unique_ptr<PagedBackend> make_described_cuda_backend(const KvMethod& method, const ModelConfig& model,
                                                          at::Device device, bool general);
// PagedCache with attention on a GPU by the general kernel.
std::unique_ptr<PagedBackend> make_general_cuda_backend(const KvMethod& method, const ModelConfig& model,
                                                        at::Device device);
// The fast kernels where they hold the cache, else the general one. EnvironmentError where decode_obstacle() has
// something to say, or this build has no CUDA.
std::unique_ptr<PagedBackend> make_cuda_backend(const KvMethod& method, const ModelConfig& model, at::Device device);
// Why no CUDA kernel can hold this method's cache: a clause without a full stop; empty when one can.
std::string cuda_decode_obstacle(const KvMethod& method, const ModelConfig& model);
// Why the fast kernels cannot, so that the general one runs: such a clause; empty when they can.
std::string general_kernel_reason(const KvMethod& method, const ModelConfig& model);

}  // namespace oscar
