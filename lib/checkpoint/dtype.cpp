#include <array>
#include <limits>
#include <utility>

#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_header.h"

namespace oscar {
namespace {

struct DTypeRow {
  DType dtype;
  const char* name;
  std::size_t size;
};
constexpr std::array<DTypeRow, 17> kDTypes{{{DType::kBool, "BOOL", 1},
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
                                            {DType::kF8E5M2, "F8_E5M2", 1},
                                            {DType::kF8E8M0, "F8_E8M0", 1},
                                            {DType::kOther, "", 1}}};

}  // namespace

std::size_t dtype_size(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)].size; }
const char* dtype_name(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)].name; }

std::uint64_t other_type_bits(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, std::uint64_t>, 6> kBits{
      {{"F4", 4}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"C64", 64}}};
  for (const auto& [type, bits] : kBits) {
    if (name == type) return bits;
  }
  return 0;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const DTypeRow& row : kDTypes) {
    if (name == row.name && row.dtype != DType::kOther) return row.dtype;
  }
  return other_type_bits(name) > 0 ? std::optional(DType::kOther) : std::nullopt;
}

std::string dtype_names() {
  std::string text;
  for (const DTypeRow& row : kDTypes) {
    if (row.dtype != DType::kOther) text += (text.empty() ? "" : ", ") + std::string(row.name);
  }
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

std::string TensorView::type_text() const { return dtype == DType::kOther ? other_type : dtype_name(dtype); }

std::string TensorView::shape_text() const {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

}  // namespace oscar
