// Regular expressions with Oniguruma, the engine (and syntax) of Hugging Face tokenizers.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace oscar {

// A part of a text: a match of the pattern, or the text between matches.
struct Part {
  std::size_t begin, end;  // bytes
  bool match;
};

class Regex {
 public:
  // InputError for an invalid pattern; `where` names the file and component.
  Regex(const std::string& pattern, const std::string& where);
  ~Regex();
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  // All parts in order; they cover the text (valid UTF-8). Skips an empty match directly after another match.
  // Backtracking and memory are limited: InputError if a pattern needs too much of either. Time is charged to the
  // thread's budget.
  std::vector<Part> split(std::string_view text) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
  std::string where_;
};

// The same for a plain string; an empty one never matches.
std::vector<Part> split_by_string(std::string_view text, std::string_view needle);

}  // namespace oscar
