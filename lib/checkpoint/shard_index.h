// model.safetensors.index.json, which maps each tensor to its shard.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace oscar {

// Tensor name -> file name in the checkpoint's directory. InputError for invalid index text, a duplicate tensor, or a
// file name that leaves the directory. Parses event by event, so a large index stays cheap.
std::map<std::string, std::string> parse_shard_index(std::string_view json, const std::string& where);

// 'total_size' of its 'metadata' [bytes]; 0 if absent. InputError if it is not a valid number of bytes.
std::uint64_t parse_total_size(std::string_view json, const std::string& where);

}  // namespace oscar
