#include "checkpoint/gguf_advice.h"

#include <algorithm>
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
  return path.extension() == ".gguf" && fs::is_regular_file(path, ec);
}

std::string gguf_file_advice(const fs::path& file) {
  const std::string folder = file.parent_path().empty() ? "." : file.parent_path().string();
  const std::string name = file.filename().string();
  return "; convert " + quote_name(name) +
         ": python3 -c \"from transformers import AutoModelForCausalLM as M, AutoTokenizer as T; d, f = " +
         python_text(folder, "DIRECTORY") + ", dict(gguf_file=" + python_text(name, "FILE.gguf") +
         "); M.from_pretrained(d, dtype='bfloat16', **f).save_pretrained('converted'); "
         "T.from_pretrained(d, **f).save_pretrained('converted')\" (needs transformers and gguf), and pass --model "
         "converted";
}

std::string gguf_advice(const fs::path& directory) {
  std::vector<fs::path> files;
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(directory, ec)) {
    if (is_gguf_file(entry.path())) files.push_back(entry.path());
  }
  if (files.empty()) return "";
  return gguf_file_advice(*std::min_element(files.begin(), files.end()));
}

}  // namespace oscar
