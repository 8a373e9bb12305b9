// The "model" of tokenizer.json, which converts one word (pre-token) to tokens. BPE (bpe.h) and Unigram (unigram.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/tokenizer_json.h"

namespace oscar {

class TokenModel {
 public:
  // Encodes the words of one text. A session has its own working state, so threads can share a model.
  class Session {
   public:
    virtual ~Session() = default;
    virtual void encode(std::string_view word, std::vector<std::int32_t>& ids) = 0;  // appends; valid UTF-8
  };

  virtual ~TokenModel() = default;
  virtual std::unique_ptr<Session> start() const = 0;
  virtual std::optional<std::int32_t> id_of(std::string_view token) const = 0;
  virtual const std::string* text_of(std::int32_t id) const = 0;  // null for an unused id
  virtual std::size_t size() const = 0;                           // number of tokens
  virtual std::int32_t highest_id() const = 0;
};

// InputError names an unsupported option of the model.
std::unique_ptr<TokenModel> make_token_model(const TokenizerJson& file, const std::string& where);

// The ids of the tokens <0x00> to <0xFF>, which represent bytes; -1 if the model lacks one.
class ByteTokens {
 public:
  explicit ByteTokens(const TokenModel& model);
  // Appends the tokens of all bytes of the text. False, without appending, if a byte has no token.
  bool append(std::string_view text, std::vector<std::int32_t>& ids) const;

 private:
  std::int32_t ids_[256];
};

}  // namespace oscar
