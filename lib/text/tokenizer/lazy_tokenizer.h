// A tokenizer that is read when a text first needs it: rows of token ids need none, and a model whose tokenizer is
// missing or of a kind that is not supported can still be calibrated and judged on them.
#pragma once

#include <optional>
#include <utility>

#include "base/files.h"
#include "text/tokenizer/tokenizer.h"

namespace oscar {

class LazyTokenizer {
 public:
  explicit LazyTokenizer(fs::path tokenizer_json) : file_(std::move(tokenizer_json)) {}
  LazyTokenizer(const Tokenizer& tokenizer) : given_(&tokenizer) {}  // one that was read, and outlives this object

  // InputError as Tokenizer::from_file(), by the first call. Not for use by several threads at once.
  const Tokenizer& get() const;

 private:
  fs::path file_;
  const Tokenizer* given_ = nullptr;
  mutable std::optional<Tokenizer> own_;
};

}  // namespace oscar
