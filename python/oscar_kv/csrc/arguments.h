// Checks of the operators' arguments. Kernels take raw pointers, so device, type, shape and layout of every tensor are
// checked here first. Includes only headers of torch's stable ABI. python/oscar_kv/ops/operators.py has the schemas,
// the meaning of the arguments and the torch reference, and declares the operators before this library is loaded.
#pragma once

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cuda_runtime_api.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

namespace oscar_kv {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

inline constexpr std::int64_t kAny = -1;  // in an expected shape: any size

// The arguments of one call. All tensors must be on one CUDA device. Kernels run on its current stream.
class Arguments {
 public:
  // anchor: the tensor whose device all others must share.
  Arguments(const char* op, const Tensor& anchor);

  // The address of a tensor, which must be contiguous and have this type and shape. The message names what differs.
  void* address(const Tensor& tensor, const char* name, ScalarType type,
                std::initializer_list<std::int64_t> shape) const;
  template <class T>
  T* get(const Tensor& tensor, const char* name, ScalarType type, std::initializer_list<std::int64_t> shape) const {
    return static_cast<T*>(address(tensor, name, type, shape));
  }
  // The same for an optional tensor; null if there is none.
  template <class T>
  T* get(const std::optional<Tensor>& tensor, const char* name, ScalarType type,
         std::initializer_list<std::int64_t> shape) const {
    return tensor.has_value() ? get<T>(*tensor, name, type, shape) : nullptr;
  }
  // The address of bytes on the CPU.
  std::uint8_t* host_bytes(const Tensor& tensor, const char* name, std::initializer_list<std::int64_t> shape) const;
  // The address of rows [N, heads, d] in FP32 or BF16. The heads of a token are contiguous; tokens may have a stride.
  const void* rows(const Tensor& tensor, const char* name, std::int64_t tokens, std::int64_t heads,
                   std::int64_t d) const;

  // The address of matrices [1 or Hkv, ...] of keys or values. Sets heads to their number.
  template <class T>
  T* matrices(const Tensor& tensor, const char* name, ScalarType type, std::initializer_list<std::int64_t> shape,
              std::int64_t kv_heads, std::int32_t& heads) const {
    T* address = get<T>(tensor, name, type, shape);
    heads = head_count(tensor, name, kv_heads);
    return address;
  }

  // Converts a number to the type of the kernels; refuses a negative or too large one.
  std::int32_t int32(std::int64_t value, const char* name) const;
  Tensor empty(std::initializer_list<std::int64_t> shape, ScalarType type) const;
  cudaStream_t stream() const;
  // Throws if a launch failed. kernel: its name for the message.
  void launched(cudaError_t error, const char* kernel) const;
  [[noreturn]] void refuse(const std::string& sentence) const;

 private:
  void check_place(const Tensor& tensor, const char* name) const;
  std::int32_t head_count(const Tensor& tensor, const char* name, std::int64_t kv_heads) const;

  const char* op_;
  const Tensor& anchor_;
  std::int32_t device_;
  std::optional<torch::stable::accelerator::DeviceGuard> guard_;  // kernels are launched on the current device
};

}  // namespace oscar_kv
