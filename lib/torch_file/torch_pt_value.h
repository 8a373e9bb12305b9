// The values of a torch.save file as plain data, without Torch types or code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "checkpoint/safetensors.h"

namespace oscar {

// A strided view of a storage. Several tensors may share one storage. `owner` keeps the bytes alive unless the caller
// owns them.
struct PtTensor {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  // in elements, as many as in shape, none negative
  std::span<const std::byte> data;    // from the first element to the end of the storage
  std::shared_ptr<const void> owner;

  // A contiguous tensor that takes ownership of the bytes. InputError if their number does not fit the shape.
  static PtTensor own(DType dtype, std::vector<std::int64_t> shape, std::vector<std::byte> bytes);
  static PtTensor own(std::vector<std::int64_t> shape, const std::vector<float>& values);

  std::int64_t elements() const;
  bool contiguous() const;
  std::string shape_text() const;        // "[128, 128]"
  std::vector<std::byte> bytes() const;  // the elements in row-major order
  std::vector<float> floats() const;     // the same as F32; InputError unless F16, BF16, F32 or F64
};

struct PtValue;
using PtList = std::vector<PtValue>;                      // a list or tuple
using PtDict = std::vector<std::pair<PtValue, PtValue>>;  // in file order; keys are integers or text, and unique

struct PtValue {
  std::variant<std::monostate, bool, std::int64_t, double, std::string, PtList, PtDict, PtTensor> data;

  PtValue() = default;  // None
  PtValue(bool v) : data(v) {}
  PtValue(int v) : data(std::int64_t{v}) {}
  PtValue(std::int64_t v) : data(v) {}
  PtValue(double v) : data(v) {}
  PtValue(const char* v) : data(std::string(v)) {}
  PtValue(std::string v) : data(std::move(v)) {}
  PtValue(PtList v) : data(std::move(v)) {}
  PtValue(PtDict v) : data(std::move(v)) {}
  PtValue(PtTensor v) : data(std::move(v)) {}

  template <typename T>
  const T* as() const {  // nullptr if it holds another type
    return std::get_if<T>(&data);
  }
  const char* type_name() const;  // "a dictionary"
};

// The value under a text key; nullptr when absent.
const PtValue* find_key(const PtDict& dict, std::string_view key);

}  // namespace oscar
