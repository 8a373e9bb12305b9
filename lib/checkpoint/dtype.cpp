#include <array>
#include <limits>

#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_header.h"

namespace oscar {
namespace {

struct DTypeRow {
  DType dtype;
  const char* name;
  std::size_t size;
};
constexpr std::array<DTypeRow, 15> kDTypes{{{DType::kBool, "BOOL", 1},
                                            {DType::kU8, "U8", 1},
                                            {DType::kI8, "I8", 1},
                                            {DType::kU16, "U16", 2},
                                            {DType::kI16, "I16", 2},
                                            {DType::kU32, "U32", 4},
                                            {DType::kI32, "I32", 4},
                                            {DType::kU64, "U64", 8},
                                            {DType::kI64, "I64", 8},
                                            {DType::kF16, "F16", 2},
                                            {DType::kBF16, "BF16", 2},
                                            {DType::kF32, "F32", 4},
                                            {DType::kF64, "F64", 8},
                                            {DType::kF8E4M3, "F8_E4M3", 1},
                                            {DType::kF8E5M2, "F8_E5M2", 1}}};

}  // namespace

std::size_t dtype_size(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)].size; }
const char* dtype_name(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)].name; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const DTypeRow& row : kDTypes) {
    if (name == row.name) return row.dtype;
  }
  return std::nullopt;
}

std::string dtype_names() {
  std::string text;
  for (const DTypeRow& row : kDTypes) text += (text.empty() ? "" : ", ") + std::string(row.name);
  return text;
}

std::optional<std::uint64_t> tensor_bytes(const std::vector<std::int64_t>& shape, DType dtype) {
  std::uint64_t bytes = dtype_size(dtype);
  bool empty = false;
  for (const std::int64_t extent : shape) {
    if (extent < 0) return std::nullopt;
    empty = empty || extent == 0;
  }
  if (empty) return 0;
  for (const std::int64_t extent : shape) {
    const auto n = static_cast<std::uint64_t>(extent);
    if (bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) / n) return std::nullopt;
    bytes *= n;
  }
  return bytes;
}

std::int64_t TensorView::elements() const { return static_cast<std::int64_t>(data.size() / dtype_size(dtype)); }

std::string TensorView::shape_text() const {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

}  // namespace oscar
