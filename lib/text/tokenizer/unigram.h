// Unigram language models of SentencePiece (Kudo 2018), segmented like Hugging Face tokenizers. It selects the path of
// pieces with the highest sum of scores (Viterbi). A character without a piece costs ten less than the worst piece.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer/string_matcher.h"
#include "text/tokenizer/token_model.h"

namespace oscar {

class Unigram : public TokenModel {
 public:
  // InputError if unk_id is not an index of the vocabulary.
  Unigram(const TokenizerJson& file, const std::string& where);
  Unigram(const Unigram&) = delete;
  Unigram& operator=(const Unigram&) = delete;

  // Adjacent unknown characters become one token, or with byte_fallback the tokens of their bytes. InputError for an
  // unknown character if the model has no unknown token.
  std::unique_ptr<TokenModel::Session> start() const override;
  std::optional<std::int32_t> id_of(std::string_view token) const override;
  const std::string* text_of(std::int32_t id) const override;
  std::size_t size() const override { return pieces_.size(); }
  std::int32_t highest_id() const override { return static_cast<std::int32_t>(pieces_.size()) - 1; }

 private:
  class Session;

  std::string where_;
  std::vector<std::pair<std::string, double>> pieces_;      // by id: text and score
  std::unordered_map<std::string_view, std::int32_t> ids_;  // the last of equal pieces
  StringMatcher matcher_;
  std::optional<std::int32_t> unknown_;
  double unknown_score_ = 0.0;
  std::optional<ByteTokens> bytes_;  // with byte_fallback
};

}  // namespace oscar
