// Tokens that lie beside tokenizer.json: tokenizer_config.json, special_tokens_map.json and added_tokens.json name
// tokens that transformers' AutoTokenizer adds to those of tokenizer.json, changes their flags with, and gives to chat
// templates by name. Read in its order (transformers 5, tokenizers without a class of their own).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace oscar {

struct ConfigTokens {
  // To be added after those of tokenizer.json, in this order, each with its flags: content, single_word, lstrip,
  // rstrip, normalized, special. One that is there already gets these flags. Ids in these files are not used: a token
  // that is not in the vocabulary gets the next free id, as AutoTokenizer gives it.
  Json added = Json::array();
  // bos_token and the like, also image_token and others of the model's own, by name.
  std::vector<std::pair<std::string, std::string>> named;
};

// Of a model directory; `own` are the "added_tokens" of its tokenizer.json, or null. Files that are absent say nothing.
// InputError for members of other types, and for "split_special_tokens", with which no token would be found in a text.
ConfigTokens read_config_tokens(const fs::path& directory, const Json& own);

}  // namespace oscar
