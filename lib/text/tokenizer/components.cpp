#include "text/tokenizer/components.h"

#include <array>

#include "base/errors.h"
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

}  // namespace oscar
