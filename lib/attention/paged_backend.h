// What PagedAttention runs on: the cache in main memory with the CPU's decode attention; the cache in the memory of a
// GPU, written and read by the fast kernels; or, for every other cache, by slower kernels for all layouts. CMake
// replaces the CUDA ones by no_cuda/cuda_backend.cpp where CUDA is off.
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
  virtual void expect(std::int64_t /*sequences*/, std::int64_t /*tokens*/) {}  // what it does not use
  // New tokens of every sequence are appended one after another, each attends to the cache as it is then. The starts of
  // the batch are those of the cache.
  virtual at::Tensor attend(const AttentionInput& input) = 0;
  virtual void append(const AttentionInput& input) = 0;  // the same without attention; reads k and v alone
  virtual void release(std::int64_t sequence) = 0;
  virtual std::int64_t tokens(std::int64_t layer, std::int64_t sequence) const = 0;
  virtual StoredPages stored(std::int64_t layer, std::int64_t sequence, Side side) const = 0;
  virtual std::int64_t pages_in_use() const = 0;
  virtual std::uint64_t allocated_bytes() const = 0;
};

std::unique_ptr<PagedBackend> make_cpu_backend(const KvMethod& method, const ModelConfig& model);
// The fast kernels where they hold the cache, else the fallback. EnvironmentError where decode_unsupported() has
// something to say, or this build has no CUDA.
std::unique_ptr<PagedBackend> make_cuda_backend(const KvMethod& method, const ModelConfig& model, at::Device device);
// Of every layout. general: attention by the general kernel, else by the one for KIVI's pages.
std::unique_ptr<PagedBackend> make_fallback_backend(const KvMethod& method, const ModelConfig& model, at::Device device,
                                                    bool general);
// Why no CUDA kernel can hold this method's cache: a clause without a full stop; empty when one can.
std::string cuda_decode_unsupported(const KvMethod& method, const ModelConfig& model);
// Why the fast kernels cannot, so that the general one runs: such a clause; empty when they can.
std::string fallback_reason(const KvMethod& method, const ModelConfig& model);

}  // namespace oscar
