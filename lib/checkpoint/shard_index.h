// model.safetensors.index.json: which shard holds each tensor.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace oscar {

// Tensor name -> file name in the checkpoint's directory. InputError for text that is not such an index, a tensor
// named twice, or a file name that leaves the directory. Read event by event, so a large index stays cheap.
std::map<std::string, std::string> parse_shard_index(std::string_view json, const std::string& where);

}  // namespace oscar
