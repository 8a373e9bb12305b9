// tokenizer.json as data. The vocabulary and merges have hundreds of thousands of entries and are parsed directly into
// flat lists. Everything else becomes a small Json value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"

namespace oscar {

struct TokenizerJson {
  enum class Kind { kBpe, kUnigram };
  Kind kind = Kind::kBpe;
  std::vector<std::pair<std::string, std::int32_t>> vocabulary;  // in file order; texts and ids are unique
  std::vector<std::pair<std::string, std::string>> merges;       // in rank order
  std::vector<std::pair<std::string, double>> pieces;            // for Unigram: text and score, by id
  Json rest;                                                     // the file without model.vocab and model.merges
};

// InputError with the place and the fault: not JSON, duplicate keys, deep nesting, bad ids, malformed merges or scores,
// or a model other than BPE and Unigram.
TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& where);

}  // namespace oscar
