#include "text/tokenizer/token_model.h"

#include <algorithm>

#include "base/formatted.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/unigram.h"

namespace oscar {

std::unique_ptr<TokenModel> make_token_model(const TokenizerJson& file, const std::string& where) {
  if (file.kind == TokenizerJson::Kind::kUnigram) return std::make_unique<Unigram>(file, where);
  return std::make_unique<Bpe>(file, where);
}

ByteTokens::ByteTokens(const TokenModel& model) {
  for (int byte = 0; byte < 256; ++byte) {
    ids_[byte] = model.id_of(formatted("<0x%02X>", static_cast<unsigned>(byte))).value_or(-1);
  }
}

bool ByteTokens::append(std::string_view text, std::vector<std::int32_t>& ids) const {
  const auto id = [&](char c) { return ids_[static_cast<unsigned char>(c)]; };
  if (std::any_of(text.begin(), text.end(), [&](char c) { return id(c) < 0; })) return false;
  for (const char c : text) ids.push_back(id(c));
  return true;
}

}  // namespace oscar
