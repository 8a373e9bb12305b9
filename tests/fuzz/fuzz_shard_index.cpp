#include "base/errors.h"
#include "checkpoint/shard_index.h"
#include "fuzz/fuzz_target.h"

namespace oscar::fuzz {

std::vector<std::string> seeds() {
  return {R"({"metadata":{"total_size":10},"weight_map":{"a":"model-00001-of-00002.safetensors","b":"sub/x"}})",
          R"({"weight_map":{}})", R"({"x":[[{"weight_map":1}]],"weight_map":{"a":"b"}})"};
}

void read_input(std::string_view bytes) {
  try {
    require(parse_total_size(bytes, "index.json") <= 1000000000000000000U, "a number of bytes");
  } catch (const InputError&) {  // which is refused apart from the map
  }
  for (const auto& [tensor, file] : parse_shard_index(bytes, "index.json")) {
    require(!file.empty() && file.front() != '/' && file.find('\0') == std::string::npos, "a relative file name");
    require(("/" + file + "/").find("/../") == std::string::npos, "a file inside the checkpoint");
  }
}

}  // namespace oscar::fuzz
