// model.safetensors.index.json: which shard holds each tensor.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace oscar {

// Tensor name -> file name in the checkpoint's directory. InputError for text that is not such an index, a tensor
// named twice, or a file name that leaves the directory. Read event by event, so a large index stays cheap.
std::map<std::string, std::string> parse_shard_index(std::string_view json, const std::string& where);

// 'total_size' of its 'metadata', in bytes; 0 where there is none. InputError for one that is no number of bytes.
std::uint64_t parse_total_size(std::string_view json, const std::string& where);

}  // namespace oscar
