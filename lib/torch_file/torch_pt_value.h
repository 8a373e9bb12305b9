// The values a torch.save file can hold, as plain data: no Torch type, no code.
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

// A strided view of a storage. Several tensors may share one storage; `owner` keeps the bytes alive where they are not
// the caller's.
struct PtTensor {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  // in elements, same length as shape, none negative
  std::span<const std::byte> data;    // from the first element to the end of the storage
  std::shared_ptr<const void> owner;

  // A contiguous tensor over bytes it takes over; their number must fit the shape (InputError).
  static PtTensor own(DType dtype, std::vector<std::int64_t> shape, std::vector<std::byte> bytes);
  static PtTensor own(std::vector<std::int64_t> shape, const std::vector<float>& values);

  std::int64_t elements() const;
  bool contiguous() const;
  std::string shape_text() const;        // "[128, 128]"
  std::vector<std::byte> bytes() const;  // the elements in row-major order
  std::vector<float> floats() const;     // the same as F32; InputError unless F16, BF16, F32 or F64
};

struct PtValue;
using PtList = std::vector<PtValue>;                      // lists and tuples
using PtDict = std::vector<std::pair<PtValue, PtValue>>;  // in the order of the file; keys are integers or text, unique

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
  const T* as() const {  // nullptr when it holds another type
    return std::get_if<T>(&data);
  }
  const char* type_name() const;  // "a dictionary"
};

// The value under a text key; nullptr when absent.
const PtValue* find_key(const PtDict& dict, std::string_view key);

}  // namespace oscar
