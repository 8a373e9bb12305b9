// The JSON header of a safetensors file, read event by event: no tree is built, so a hostile header of 100 MB costs
// memory in proportion to the tensors it names and nothing more.
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
  std::string other_type = {};  // of DType::kOther
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  // bytes from the end of the header
};

struct SafetensorsHeader {
  std::vector<HeaderTensor> tensors;  // in the order of the file
  std::map<std::string, std::string> metadata;
};

// InputError for text that is not JSON of the header's form: duplicate names, unknown dtypes, negative or fractional
// numbers. Whether offsets and shapes agree with the file is checked by the caller.
SafetensorsHeader parse_safetensors_header(std::string_view json, const std::string& where);

// kOther for a type of the format that nothing here reads; nullopt for anything else.
std::optional<DType> dtype_from_name(std::string_view name);
std::uint64_t other_type_bits(std::string_view name);  // of an element of such a type; 0 for any other name
std::string dtype_names();                             // "BOOL, U8, ..."
// product(shape) * element size; nullopt for a negative extent or a size beyond 63 bits.
std::optional<std::uint64_t> tensor_bytes(const std::vector<std::int64_t>& shape, DType dtype);

}  // namespace oscar
