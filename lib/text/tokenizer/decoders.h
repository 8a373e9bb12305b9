// The "decoder" of tokenizer.json, which converts tokens to text.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/json.h"

namespace oscar {

class TokenDecoder {
 public:
  virtual ~TokenDecoder() = default;
  // Rewrites the list of pieces; their concatenation is the text.
  virtual void apply(std::vector<std::string>& pieces) const = 0;
};

// Null for a JSON null. InputError names an unsupported type.
std::unique_ptr<TokenDecoder> make_token_decoder(const Json& description, const std::string& where);

}  // namespace oscar
