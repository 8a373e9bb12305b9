// Parses the JSON header of a safetensors file event by event, without building a tree. A hostile header of 100 MB thus
// costs only memory in proportion to the tensors that it names.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors.h"

namespace oscar {

struct HeaderTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::string other_type = {};  // for DType::kOther
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  // byte offsets from the end of the header
};

struct SafetensorsHeader {
  std::vector<HeaderTensor> tensors;  // in file order
  std::map<std::string, std::string> metadata;
};

// InputError for text that is not a valid header: duplicate names, unknown dtypes, negative or fractional numbers. The
// caller checks whether offsets and shapes agree with the file.
SafetensorsHeader parse_safetensors_header(std::string_view json, const std::string& where);

// kOther for a type of the format that this project does not read; nullopt for anything else.
std::optional<DType> dtype_from_name(std::string_view name);
std::uint64_t other_type_bits(std::string_view name);  // bits per element of such a type; 0 for any other name
std::string dtype_names();                             // "BOOL, U8, ..."
// product(shape) * element size; nullopt for a negative extent or a size beyond 63 bits.
std::optional<std::uint64_t> tensor_bytes(const std::vector<std::int64_t>& shape, DType dtype);

}  // namespace oscar
