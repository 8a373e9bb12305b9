#include "checkpoint/model_name.h"

#include <algorithm>

#include "base/errors.h"
#include "base/foreign_text.h"

namespace oscar {
namespace {

constexpr std::size_t kMostBytes = 200, kMostWord = 64;

bool is_alphanumeric(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); }

bool is_component(std::string_view text) {
  const auto allowed = [](char c) { return is_alphanumeric(c) || c == '.' || c == '_' || c == '-'; };
  return !text.empty() && text != "." && text != ".." && text.front() != '-' &&
         std::all_of(text.begin(), text.end(), allowed);
}

}  // namespace

bool is_model_name(std::string_view name) {
  if (name.size() > kMostBytes) return false;
  const std::size_t slash = name.find('/');
  if (slash == std::string_view::npos) return is_component(name);
  return is_component(name.substr(0, slash)) && is_component(name.substr(slash + 1));
}

bool is_plain_word(std::string_view word) {
  const auto allowed = [](char c) { return is_alphanumeric(c) || c == '_' || c == '-'; };
  return !word.empty() && word.size() <= kMostWord && is_alphanumeric(word.front()) &&
         std::all_of(word.begin(), word.end(), allowed);
}

std::string plain_model_name(std::string_view name) {
  if (name.empty() || is_model_name(name)) return std::string(name);
  std::string plain;
  for (const char c : name.substr(0, kMostBytes)) {
    const bool kept = is_alphanumeric(c) || c == '.' || c == '_';
    if (kept || plain.empty() || plain.back() != '-') plain += kept ? c : '-';
  }
  plain.erase(0, std::min(plain.find_first_not_of(".-"), plain.size()));
  return plain.empty() ? "model" : plain;
}

std::string read_model_name(const std::string& name, const std::string& where) {
  if (name.empty() || is_model_name(name)) return name;
  throw InputError(where + ": the model's name is " + quote_name(name) +
                   ", expected a name or org/name of letters, digits, '.', '_' and '-'");
}

}  // namespace oscar
