#include "text/tokenizer/components.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "text/unicode/unicode.h"

namespace oscar {
namespace {

struct ByteMap {
  std::array<std::string, 256> text;
  std::array<int, 0x200> byte;
  ByteMap() {
    byte.fill(-1);
    char32_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      const char32_t c = printable ? static_cast<char32_t>(b) : next++;
      append_utf8(text[static_cast<std::size_t>(b)], c);
      byte[c] = b;
    }
  }
};

const ByteMap& byte_map() {
  static const ByteMap map;
  return map;
}

}  // namespace

void refuse_component(const std::string& where, const std::string& part, const std::string& type,
                      const std::string& supported) {
  throw InputError(where + ": the " + part + " '" + printable(type) + "' is not supported; supported are " + supported +
                   "; pass prompts as {\"input_ids\": [...]} rows instead");
}

namespace {

std::size_t count_steps(const Json& description) {
  std::size_t steps = description.is_object() && description.contains("type") ? 1 : 0;
  if (description.is_structured()) {
    for (const Json& member : description) steps += count_steps(member);
  }
  return steps;
}

}  // namespace

void require_few_steps(const Json& description, const std::string& part, const std::string& where) {
  constexpr std::size_t kMost = 100;  // the longest known has fewer than ten
  const std::size_t steps = count_steps(description);
  if (steps > kMost) {
    throw InputError(where + ": the " + part + " is made of " + std::to_string(steps) + " steps, supported are " +
                     std::to_string(kMost));
  }
}

bool need_bool(const Json& object, const char* key, const std::string& where) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_boolean()) {
    throw InputError(where + ": '" + key + "' is missing or not true or false");
  }
  return it->get<bool>();
}

TextPattern::TextPattern(const Json& component, const std::string& where) {
  const Json& pattern = json_object(component, "pattern", where);
  if (pattern.contains("Regex")) {
    regex_ = std::make_shared<const Regex>(json_string(pattern, "Regex", where), where);
  } else {
    plain_ = json_string(pattern, "String", where);
  }
}

std::vector<Part> TextPattern::split(std::string_view text) const {
  return regex_ != nullptr ? regex_->split(text) : split_by_string(text, plain_);
}

std::string_view byte_to_text(unsigned char byte) { return byte_map().text[byte]; }

int text_to_byte(char32_t c) { return c < 0x200 ? byte_map().byte[c] : -1; }

namespace {

// Files that contain only a tokenizer, most likely first.
std::vector<fs::path> candidates(const fs::path& directory) {
  std::vector<fs::path> named, others;
  for (const char* name : {"tokenizer.model", "tiktoken.model", "spiece.model", "sentencepiece.bpe.model"}) {
    std::error_code ec;
    if (fs::is_regular_file(directory / name, ec)) named.push_back(directory / name);
  }
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(directory, ec)) {
    if (entry.path().extension() == ".tiktoken") others.push_back(entry.path());
  }
  std::sort(others.begin(), others.end());
  named.insert(named.end(), others.begin(), others.end());
  return named;
}

// Lines of base64, a space and a rank; SentencePiece files are binary.
bool is_tiktoken(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  char start[64] = {};
  in.read(start, sizeof start);
  const std::string_view text(start, static_cast<std::size_t>(in.gcount()));
  const std::string_view line = text.substr(0, text.find('\n'));
  const std::size_t space = line.find(' ');
  return space != std::string_view::npos && space > 0 && space + 1 < line.size() &&
         line.find_first_not_of("0123456789", space + 1) == std::string_view::npos &&
         line.substr(0, space).find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=") ==
             std::string_view::npos;
}

// For a shell, inside single Python quotes; empty for a name that cannot be quoted this way.
std::string quoted(const fs::path& directory) {
  const std::string name = directory.string();
  return name.find_first_of("'\"\\`$!\n") == std::string::npos && escape_text(name) == name ? name : "";
}

}  // namespace

void refuse_missing_tokenizer(const fs::path& tokenizer_json) {
  const fs::path directory = tokenizer_json.parent_path();
  const std::vector<fs::path> files = candidates(directory);
  const std::string missing = escape_text(tokenizer_json.string()) + " is missing";
  if (files.empty()) throw InputError(missing + "; put the tokenizer of the model there");
  const bool tiktoken = is_tiktoken(files[0]);
  const std::string name = quoted(directory).empty() ? "DIRECTORY" : quoted(directory);
  std::string command = "python3 -c \"from transformers import AutoTokenizer as A; A.from_pretrained('" + name +
                        "').save_pretrained('" + name + "')\"";
  if (files[0].extension() == ".tiktoken") {
    command = "cp '" + name + "/" + escape_text(files[0].filename().string()) + "' '" + name + "/tiktoken.model' && " +
              command;
  }
  throw InputError(missing + ", and " + escape_text(files[0].filename().string()) + " (" +
                   (tiktoken ? "tiktoken" : "SentencePiece") + ") is not read; convert it: " + command +
                   (tiktoken ? " (needs transformers and tiktoken; such a file lacks the pattern that splits texts, "
                               "and Llama 3's is taken, so do this only for models that have it)"
                             : " (needs transformers, sentencepiece and protobuf)"));
}

}  // namespace oscar
