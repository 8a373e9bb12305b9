// The "Precompiled" normalizer: the character map of a SentencePiece model. Layout, little endian:
// - U32 size of the trie in bytes;
// - the trie, a double array of U32 as written by Darts: label in bits 0-7 and 31, leaf flag in bit 8, offset in bits
//   10-30, shifted by 8 more if bit 9 is set;
// - the replacements, each ended by a zero byte.
// A key leads to a leaf whose value is the start of its replacement.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/stages.h"

namespace oscar {

class Charsmap : public Normalizer {
 public:
  // `base64` is the member "precompiled_charsmap". InputError when it is damaged.
  Charsmap(std::string_view base64, const std::string& where);

  // Follows Hugging Face tokenizers, which differs from SentencePiece. Grapheme clusters below six bytes are looked up
  // as a unit, everything else by character. The shortest matching key replaces all of it.
  bool apply(std::string& text) const override;  // never reports removed characters, as in tokenizers

 private:
  std::optional<std::string_view> replacement(std::string_view text) const;

  std::vector<std::uint32_t> trie_;
  std::string replacements_;
};

}  // namespace oscar
