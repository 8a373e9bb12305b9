// Tokens in files beside tokenizer.json: tokenizer_config.json, special_tokens_map.json and added_tokens.json.
// transformers' AutoTokenizer adds these tokens, changes flags with them, and gives them to chat templates by name.
// Read in its order (transformers 5, tokenizers without a special class).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace oscar {

struct ConfigTokens {
  // Tokens to add after those in tokenizer.json, in this order, each with its flags: content, single_word, lstrip,
  // rstrip, normalized, special. An existing token gets these flags. Ids in these files are ignored: as in
  // AutoTokenizer, a token outside the vocabulary gets the next free id.
  Json added = Json::array();
  // bos_token and similar, also image_token and other model-specific names, by name.
  std::vector<std::pair<std::string, std::string>> named;
  // "add_prefix_space" is true. Some classes of transformers follow it in place of tokenizer.json.
  bool prefix_space = false;
};

// Reads a model directory; `own` is "added_tokens" of its tokenizer.json, or null. Missing files are ignored.
// InputError for members of other types, and for "split_special_tokens", which would prevent finding tokens in text.
ConfigTokens read_config_tokens(const fs::path& directory, const Json& own);

}  // namespace oscar
