#include "torch_file/torch_pt_value.h"

#include <algorithm>
#include <cstring>

#include "base/errors.h"
#include "layout/float16.h"

namespace oscar {
namespace {

template <typename Stored, typename Convert>
void convert(const std::vector<std::byte>& bytes, std::vector<float>* out, Convert to_float) {
  for (std::size_t i = 0; i < out->size(); ++i) {
    Stored value;
    std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
    (*out)[i] = to_float(value);
  }
}

std::vector<std::int64_t> row_major(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t step = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    strides[i] = step;
    step *= std::max<std::int64_t>(shape[i], 1);
  }
  return strides;
}

}  // namespace

PtTensor PtTensor::own(DType dtype, std::vector<std::int64_t> shape, std::vector<std::byte> bytes) {
  auto owned = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  PtTensor tensor{dtype, std::move(shape), {}, *owned, owned};
  tensor.strides = row_major(tensor.shape);
  if (static_cast<std::size_t>(tensor.elements()) * dtype_size(dtype) != tensor.data.size()) {
    throw InputError("a tensor of shape " + tensor.shape_text() + " cannot have " + std::to_string(tensor.data.size()) +
                     " bytes");
  }
  return tensor;
}

PtTensor PtTensor::own(std::vector<std::int64_t> shape, const std::vector<float>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return own(DType::kF32, std::move(shape), {bytes.begin(), bytes.end()});
}

std::int64_t PtTensor::elements() const {
  std::int64_t n = 1;
  for (const std::int64_t extent : shape) n *= extent;
  return n;
}

bool PtTensor::contiguous() const {
  const std::vector<std::int64_t> expected = row_major(shape);
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] > 1 && strides[i] != expected[i]) return false;
  }
  return true;
}

std::string PtTensor::shape_text() const { return TensorView{"", dtype, shape, {}}.shape_text(); }

std::vector<std::byte> PtTensor::bytes() const {
  const auto count = static_cast<std::size_t>(elements());
  const std::size_t size = dtype_size(dtype);
  if (count == 0) return {};
  if (contiguous()) return {data.begin(), data.begin() + static_cast<std::ptrdiff_t>(count * size)};
  std::vector<std::byte> out(count * size);
  std::vector<std::int64_t> index(shape.size(), 0);
  std::int64_t source = 0;  // storage index of the element at `index`
  for (std::size_t i = 0; i < count; ++i) {
    std::memcpy(out.data() + i * size, data.data() + static_cast<std::size_t>(source) * size, size);
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      source += strides[axis];
      if (++index[axis] < shape[axis]) break;
      source -= strides[axis] * shape[axis];
      index[axis] = 0;
    }
  }
  return out;
}

std::vector<float> PtTensor::floats() const {
  std::vector<float> out(static_cast<std::size_t>(elements()));
  const std::vector<std::byte> raw = bytes();
  switch (dtype) {
    case DType::kF16:
      convert<std::uint16_t>(raw, &out, float16_value);
      break;
    case DType::kBF16:
      convert<std::uint16_t>(raw, &out, bfloat16_value);
      break;
    case DType::kF32:
      convert<float>(raw, &out, [](float x) { return x; });
      break;
    case DType::kF64:
      convert<double>(raw, &out, [](double x) { return static_cast<float>(x); });
      break;
    default:
      throw InputError("a tensor of type " + std::string(dtype_name(dtype)) +
                       " stands where floating-point numbers are expected");
  }
  return out;
}

const char* PtValue::type_name() const {
  static constexpr const char* kNames[] = {"None", "a boolean", "an integer",   "a number",
                                           "text", "a list",    "a dictionary", "a tensor"};
  return kNames[data.index()];
}

const PtValue* find_key(const PtDict& dict, std::string_view key) {
  for (const auto& [name, value] : dict) {
    const auto* text = name.as<std::string>();
    if (text != nullptr && *text == key) return &value;
  }
  return nullptr;
}

}  // namespace oscar
