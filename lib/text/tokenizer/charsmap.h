// The "Precompiled" normalizer: the character map of a SentencePiece model. Layout, little endian: U32 size of the trie
// in bytes, the trie (a double array of U32 as Darts writes it: label in bits 0-7 and 31, a leaf below in bit 8, offset
// in bits 10-30, shifted by 8 more where bit 9 is set), then the replacements, each ended by a zero byte. A key leads
// to a leaf whose value is where its replacement begins.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/normalizers.h"

namespace oscar {

class Charsmap : public Normalizer {
 public:
  // `base64` is the member "precompiled_charsmap". InputError when it is damaged.
  Charsmap(std::string_view base64, const std::string& where);

  // As Hugging Face tokenizers does it, which differs from SentencePiece: clusters of characters (graphemes) below six
  // bytes are looked up whole, then everything else by character; the shortest key that fits replaces all of it.
  bool apply(std::string& text) const override;  // never tells of removed characters, as there

 private:
  std::optional<std::string_view> replacement(std::string_view text) const;

  std::vector<std::uint32_t> trie_;
  std::string replacements_;
};

}  // namespace oscar
