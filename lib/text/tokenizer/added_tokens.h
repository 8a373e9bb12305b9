// Added tokens ("<|im_start|>" and the like): found in the text before anything else sees it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "text/tokenizer/normalizers.h"
#include "text/tokenizer/string_matcher.h"
#include "text/tokenizer/token_model.h"

namespace oscar {

struct AddedToken {
  std::string content;
  std::string shown;  // what decoding gives: the content, normalized where the token is
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
  // As the package tokenizers adds them: a token that the vocabulary has keeps its id, another one gets the next free
  // id, whatever the file says (a warning tells the first that differs), and one that comes again changes its flags.
  // `more` are tokens that follow those of the file (config_tokens.h).
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
