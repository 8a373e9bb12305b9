#include "checkpoint/checkpoint_files.h"

#include <set>

#include "checkpoint/shard_index.h"

namespace oscar {

std::vector<fs::path> checkpoint_files(const ModelLocation& location) {
  constexpr const char* kIndex = "model.safetensors.index.json";
  std::set<std::string> names = {"config.json",
                                 "generation_config.json",
                                 "model.safetensors",
                                 kIndex,
                                 "tokenizer.json",
                                 "tokenizer_config.json",
                                 "chat_template.jinja",
                                 "chat_template.json",
                                 "special_tokens_map.json",
                                 "added_tokens.json"};
  std::error_code ec;
  const fs::path index = location.directory / kIndex;
  if (fs::is_regular_file(index, ec)) {
    const std::string text = read_file(index, std::uint64_t{128} << 20);
    for (const auto& [tensor, file] : parse_shard_index(text, index.string())) names.insert(file);
  }
  std::vector<fs::path> files;
  for (const std::string& name : names) files.push_back(location.directory / name);
  return files;
}

}  // namespace oscar
