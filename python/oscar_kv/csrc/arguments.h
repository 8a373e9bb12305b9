// The boundary of the operators: what a tensor must be before its pointer goes to a kernel is checked here, once. Only
// headers of torch's stable ABI.
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

inline constexpr std::int64_t kAny = -1;  // of a shape

// The arguments of one call of an operator: all tensors on one CUDA device, on whose current stream kernels run.
class Arguments {
 public:
  // anchor: a tensor that names the device.
  Arguments(const char* op, const Tensor& anchor);

  // Address of a contiguous tensor of this type and shape; a message names what differs.
  void* address(const Tensor& tensor, const char* name, ScalarType type,
                std::initializer_list<std::int64_t> shape) const;
  template <class T>
  T* get(const Tensor& tensor, const char* name, ScalarType type, std::initializer_list<std::int64_t> shape) const {
    return static_cast<T*>(address(tensor, name, type, shape));
  }
  // The same, null where there is no tensor.
  template <class T>
  T* get(const std::optional<Tensor>& tensor, const char* name, ScalarType type,
         std::initializer_list<std::int64_t> shape) const {
    return tensor.has_value() ? get<T>(*tensor, name, type, shape) : nullptr;
  }
  // Rows [N, heads, d], dense from the second dimension on, of FP32 or BF16.
  const void* rows(const Tensor& tensor, const char* name, std::int64_t tokens, std::int64_t heads,
                   std::int64_t d) const;

  // Matrices of [1 or Hkv, ...] of a side; heads: how many there are.
  template <class T>
  T* matrices(const Tensor& tensor, const char* name, ScalarType type, std::initializer_list<std::int64_t> shape,
              std::int64_t kv_heads, std::int32_t& heads) const {
    T* address = get<T>(tensor, name, type, shape);
    heads = head_count(tensor, name, kv_heads);
    return address;
  }

  // A number as the kernels take it.
  std::int32_t int32(std::int64_t value, const char* name) const;
  Tensor empty(std::initializer_list<std::int64_t> shape, ScalarType type) const;
  cudaStream_t stream() const;
  // What a kernel's launch returned.
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
