// Added tokens such as "<|im_start|>". They are found in the text before any other step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "text/tokenizer/stages.h"
#include "text/tokenizer/string_matcher.h"
#include "text/tokenizer/token_model.h"

namespace oscar {

struct AddedToken {
  std::string content;
  std::string shown;  // decoded text: the content, normalized if the token is
  std::int32_t id = 0;
  bool single_word = false, lstrip = false, rstrip = false, normalized = true, special = false;
};

// A stretch of text, or an added token.
struct Segment {
  std::size_t begin, end;
  std::int32_t token;  // -1 for text
};

class AddedTokens {
 public:
  // Adds tokens like the package tokenizers. A token in the vocabulary keeps its id; another token gets the next free
  // id, independent of the file. A warning names the first id that differs. A repeated token changes its flags. `more`:
  // tokens added after the file's tokens (config_tokens.h).
  AddedTokens(const Json& file, const Json& more, const TokenModel& model, const Normalizer* normalizer,
              const std::string& where);

  // Splits at tokens matched in the raw text (normalized = false) or in the normalized text (true).
  std::vector<Segment> split(std::string_view text, bool normalized) const;
  bool any(bool normalized) const { return !matchers_[normalized].empty(); }

  const AddedToken* find(std::int32_t id) const;
  std::optional<std::int32_t> id_of(std::string_view content) const;
  bool is_special(std::string_view content) const { return special_.contains(std::string(content)); }
  std::int32_t highest_id() const { return highest_; }

 private:
  void add(AddedToken token, const TokenModel& model, const std::string& where);

  std::vector<AddedToken> tokens_;
  std::unordered_map<std::int32_t, std::size_t> by_id_;
  std::unordered_map<std::string, std::int32_t> by_content_;
  std::unordered_set<std::string> special_;
  StringMatcher matchers_[2];
  std::int32_t highest_ = -1;
  bool warned_ = false;
};

}  // namespace oscar
