// tokenizer.json (Hugging Face tokenizers): BPE, byte-level or with byte fallback, and Unigram. Token ids equal the
// Python package's for supported components; any other component is refused by name.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files.h"

namespace oscar {

class Tokenizer {
 public:
  // InputError for a damaged file or an unsupported component (model, normalizer, pre-tokenizer, post-processor).
  // from_file() adds tokens from files beside it (config_tokens.h); from_json() does not.
  static Tokenizer from_file(const fs::path& tokenizer_json);
  static Tokenizer from_json(std::string_view text, const std::string& where);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // Replaces invalid UTF-8 by U+FFFD, like Python's decode(errors="replace"). add_special_tokens applies the
  // post-processor (BOS for Llama). Special tokens written in the text are recognized, as in Python.
  std::vector<std::int32_t> encode(std::string_view text, bool add_special_tokens) const;
  std::string decode(const std::vector<std::int32_t>& ids, bool skip_special_tokens = true) const;
  std::optional<std::int32_t> token_id(std::string_view token) const;
  std::int64_t vocabulary_size() const;  // highest id + 1

 private:
  Tokenizer();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A tokenizer that is read on first use. Rows of token ids need none, so a model with a missing or unsupported
// tokenizer can still be calibrated and evaluated on them.
class LazyTokenizer {
 public:
  explicit LazyTokenizer(fs::path tokenizer_json) : file_(std::move(tokenizer_json)) {}
  LazyTokenizer(const Tokenizer& tokenizer) : given_(&tokenizer) {}  // which must outlive this object

  // InputError as in Tokenizer::from_file(), on the first call. For one thread at a time.
  const Tokenizer& get() const;

 private:
  fs::path file_;
  const Tokenizer* given_ = nullptr;
  mutable std::optional<Tokenizer> own_;
};

}  // namespace oscar
