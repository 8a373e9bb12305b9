#include "checkpoint/model_location.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <string_view>
#include <utility>
#include <vector>

#include "base/foreign_text.h"

namespace oscar {
namespace {

// A single-quoted Python string inside double shell quotes; an uppercase placeholder for a name that cannot be quoted.
std::string python_text(const std::string& name, const std::string& otherwise) {
  const bool plain = name.find_first_of("'\"\\`$!\n") == std::string::npos && escape_text(name) == name;
  return "'" + (plain ? name : otherwise) + "'";
}

}  // namespace

bool is_gguf_file(const fs::path& path) {
  std::error_code ec;
  if (!fs::is_regular_file(path, ec)) return false;
  if (path.extension() == ".gguf" || path.extension() == ".GGUF") return true;
  std::array<char, 4> first{};  // some tools name files by their hashes
  std::ifstream(path, std::ios::binary).read(first.data(), first.size());
  return std::string_view(first.data(), first.size()) == "GGUF";
}

std::string gguf_file_advice(const fs::path& file) {
  const std::string folder = file.parent_path().empty() ? "." : file.parent_path().string();
  const std::string name = file.filename().string();
  return "; convert " + quote_name(name) +
         ": python3 -c \"from transformers import AutoModelForCausalLM as M, AutoTokenizer as T; d, f = " +
         python_text(folder, "DIRECTORY") + ", dict(gguf_file=" + python_text(name, "FILE.gguf") +
         "); M.from_pretrained(d, dtype='bfloat16', **f).save_pretrained('converted'); T.from_pretrained(d, "
         "**f).save_pretrained('converted')\" (needs transformers and gguf), and pass --model converted";
}

std::string gguf_advice(const fs::path& directory) {
  std::vector<fs::path> files;
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(directory, ec)) {
    if (is_gguf_file(entry.path())) files.push_back(entry.path());
  }
  if (files.empty()) return "";
  const auto projector = [](const fs::path& file) { return file.filename().string().starts_with("mmproj"); };
  return gguf_file_advice(*std::min_element(files.begin(), files.end(), [&](const fs::path& a, const fs::path& b) {
    return std::pair(projector(a), a) < std::pair(projector(b), b);
  }));
}

}  // namespace oscar
