#include "oscar_kv/csrc/arguments.h"

#include <limits>
#include <stdexcept>

namespace oscar_kv {
namespace {

std::string text(std::initializer_list<std::int64_t> shape) {
  std::string out;
  for (const std::int64_t n : shape) out += (out.empty() ? "" : ", ") + (n == kAny ? "any" : std::to_string(n));
  return '[' + out + ']';
}

std::string text(const Tensor& tensor) {
  std::string out;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) out += (i == 0 ? "" : ", ") + std::to_string(tensor.size(i));
  return std::string(torch::headeronly::toString(tensor.scalar_type())) + " [" + out + ']';
}

bool has_shape(const Tensor& tensor, std::initializer_list<std::int64_t> shape) {
  if (tensor.dim() != static_cast<std::int64_t>(shape.size())) return false;
  std::int64_t i = 0;
  for (const std::int64_t n : shape) {
    if (const std::int64_t found = tensor.size(i++); n != kAny && found != n) return false;
  }
  return true;
}

}  // namespace

Arguments::Arguments(const char* op, const Tensor& anchor) : op_(op), anchor_(anchor), device_(0) {
  if (!anchor.is_cuda()) refuse("its tensors are not on a CUDA device; the operators of other devices are in torch");
  device_ = anchor.get_device_index();
  guard_.emplace(device_);
}

void Arguments::refuse(const std::string& sentence) const {
  throw std::runtime_error(std::string("oscar_kv::") + op_ + ": " + sentence);
}

void Arguments::check_place(const Tensor& tensor, const char* name) const {
  if (!tensor.is_cuda() || tensor.get_device_index() != device_) {
    refuse(std::string(name) + " is not on CUDA device " + std::to_string(device_) + ", as the other tensors are");
  }
}

void* Arguments::address(const Tensor& tensor, const char* name, ScalarType type,
                         std::initializer_list<std::int64_t> shape) const {
  check_place(tensor, name);
  if (tensor.scalar_type() != type || !has_shape(tensor, shape)) {
    refuse(std::string(name) + " is " + text(tensor) + ", expected " + torch::headeronly::toString(type) + ' ' +
           text(shape));
  }
  if (!tensor.is_contiguous()) refuse(std::string(name) + " is not contiguous; pass " + name + ".contiguous()");
  return tensor.data_ptr();
}

std::uint8_t* Arguments::host_bytes(const Tensor& tensor, const char* name,
                                    std::initializer_list<std::int64_t> shape) const {
  if (!tensor.is_cpu() || tensor.scalar_type() != ScalarType::Byte || !tensor.is_contiguous() ||
      !has_shape(tensor, shape)) {
    refuse(std::string(name) + " is no Byte " + text(shape) + " on the CPU");
  }
  return static_cast<std::uint8_t*>(tensor.data_ptr());
}

const void* Arguments::rows(const Tensor& tensor, const char* name, std::int64_t tokens, std::int64_t heads,
                            std::int64_t d) const {
  check_place(tensor, name);
  const ScalarType type = tensor.scalar_type();
  if ((type != ScalarType::BFloat16 && type != ScalarType::Float) || !has_shape(tensor, {tokens, heads, d})) {
    refuse(std::string(name) + " is " + text(tensor) + ", expected BFloat16 or Float " + text({tokens, heads, d}));
  }
  if ((d > 1 && tensor.stride(2) != 1) || (heads > 1 && tensor.stride(1) != d)) {
    refuse(std::string("the heads of a token of ") + name + " are not contiguous; pass " + name + ".contiguous()");
  }
  return tensor.data_ptr();
}

std::int32_t Arguments::head_count(const Tensor& tensor, const char* name, std::int64_t kv_heads) const {
  const std::int64_t found = tensor.size(0);
  if (found != 1 && found != kv_heads) {
    refuse(std::string(name) + " has matrices of " + std::to_string(found) + " heads, expected 1 or " +
           std::to_string(kv_heads));
  }
  return static_cast<std::int32_t>(found);
}

std::int32_t Arguments::int32(std::int64_t value, const char* name) const {
  if (value < 0 || value > std::numeric_limits<std::int32_t>::max()) {
    refuse(std::string(name) + " is " + std::to_string(value) + ", expected 0 to 2147483647");
  }
  return static_cast<std::int32_t>(value);
}

Tensor Arguments::empty(std::initializer_list<std::int64_t> shape, ScalarType type) const {
  const std::vector<std::int64_t> sizes(shape);
  return torch::stable::new_empty(anchor_, sizes, type);
}

cudaStream_t Arguments::stream() const {
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device_, &stream));
  return static_cast<cudaStream_t>(stream);
}

void Arguments::launched(cudaError_t error, const char* kernel) const {
  if (error == cudaSuccess) return;
  refuse(std::string(kernel) + " failed: " + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ')');
}

}  // namespace oscar_kv
